"""Train one recipe with several seeds: one after another, or one on each GPU."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import torch
from rich.console import Console

from selfsight.errors import DivergedError, RunError, StoppedError, UserError
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.run_files.json_files import explain_write_errors
from selfsight.run_files.run_folder import Run
from selfsight.runs.compare_runs import compare, format_records, tabulate_seeds
from selfsight.runs.new_run_folder import choose_folder
from selfsight.runs.slurm_script import write_flags
from selfsight.stop_signals import restore_handlers, set_handler, signal_name
from selfsight.terminal.console import build_table, open_console
from selfsight.terminal.progress import LINE_EVERY

Train = Callable[[PretrainOptions], Run]
POLL_SECONDS = 0.1
LAST_BYTES = 4096  # of the output of a process, to find its last line
AGAIN = "Repeat the command to continue with the missing ones."


def train_seeds(
    data: str, options: PretrainOptions, device: torch.device, train: Train, console: Console
) -> list[Run]:
    """Train each seed in its own run folder, OUT-seedN; finished runs are skipped.

    `train` trains one of them in this process. Several at a time run in separate processes.
    """
    _check_options(options)
    base = choose_folder(data, replace(options, resume=True))  # not numbered: it may continue
    jobs = [
        replace(
            options, seeds=(), parallel=None, seed=seed, resume=True, out=name_folder(base, seed)
        )
        for seed in options.seeds
    ]
    gpus = list_gpus() if device.type == "cuda" else []
    has_command = isinstance(options.recipe, str | None)  # a Recipe has none
    parallel = min(options.parallel or (len(gpus) if has_command else 1) or 1, len(jobs))
    if parallel == 1:
        failed = _train_in_turn(jobs, train, console)
    else:
        failed = _train_in_processes(data, jobs, parallel, gpus, console)
    runs = [Run(Path(str(job.out))) for job in jobs]
    _print_summary([run for run in runs if run.path.name not in failed], console)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} runs did not end. {' '.join(failed.values())} {AGAIN}"
        )
    return runs


def name_folder(base: Path, seed: int) -> Path:
    """Name the run folder of a seed."""
    return base.with_name(f"{base.name}-seed{seed}")


def list_gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]


def _check_options(options: PretrainOptions) -> None:
    if options.overwrite:
        raise UserError(
            "--seeds continues the runs that are not finished, so --overwrite would train them "
            "all again each time. Remove their folders, or give another --out."
        )
    if options.sbatch is not None:
        raise UserError(
            "--sbatch writes the job of one run. Write one for each seed: --seed 0 --sbatch FILE."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "--seeds trains each run on one GPU, and torchrun one run on several. Omit "
            "torchrun, or start it once for each seed with --seed."
        )
    if not isinstance(options.recipe, str | None) and (options.parallel or 0) > 1:
        raise UserError(
            "parallel starts commands, and a Recipe has no command line: save it with `selfsight "
            "recipes NAME --save my.json`, or give the name of a recipe."
        )


def _train_in_turn(
    jobs: Sequence[PretrainOptions], train: Train, console: Console
) -> dict[str, str]:
    """Train one after another; return the runs that diverged, with a sentence each."""
    failed = {}
    for i, job in enumerate(jobs):
        console.print("", f"Seed {job.seed}, run {i + 1} of {len(jobs)}: {job.out}", sep="\n")
        try:
            train(job)
        except StoppedError as error:
            left = f"{len(jobs) - i} of {len(jobs)} seeds are not finished. {AGAIN}"
            raise StoppedError(f"{error} {left}", error.signal_number) from None
        except DivergedError as error:  # by chance of its seed: the others may learn
            failed[Path(str(job.out)).name] = f"Seed {job.seed}: {error}"
            console.print(failed[Path(str(job.out)).name], soft_wrap=True)
    return failed


@dataclass
class _Worker:
    """A process that trains one seed."""

    job: PretrainOptions
    place: int  # of those that run at a time: its GPU
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def run(self) -> Run:
        return Run(Path(str(self.job.out)))


@dataclass
class _Crew:
    """The processes that run now, and the first signal that asked all of them to stop."""

    workers: list[_Worker] = field(default_factory=list)
    signal_number: int = 0

    def stop(self, number: int, *_: object) -> None:
        self.signal_number = self.signal_number or number
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(number)


def _train_in_processes(
    data: str,
    jobs: Sequence[PretrainOptions],
    parallel: int,
    gpus: Sequence[str],
    console: Console,
) -> dict[str, str]:
    """Train several at a time; return the runs that failed, with a sentence each."""
    waiting, done = list(jobs), 0
    failed: dict[str, str] = {}
    with _forward_signals() as crew:
        said = time.monotonic()
        while (waiting and not crew.signal_number) or crew.workers:
            while waiting and len(crew.workers) < parallel and not crew.signal_number:
                taken = {worker.place for worker in crew.workers}
                place = next(i for i in range(parallel) if i not in taken)
                worker = _start(data, waiting.pop(0), place, parallel, gpus)
                crew.workers.append(worker)
                if crew.signal_number:  # which came while it was started
                    worker.process.send_signal(crew.signal_number)
                where = f" on GPU {gpus[place % len(gpus)]}" if gpus else ""
                console.print(f"Seed {worker.job.seed} started{where}; output: {worker.output}")
            time.sleep(POLL_SECONDS)
            for worker in [w for w in crew.workers if w.process.poll() is not None]:
                crew.workers.remove(worker)
                status = worker.process.returncode
                if status == 0:
                    done += 1
                    console.print(f"Seed {worker.job.seed} is finished.")
                elif status == 2 and not (done or worker.run.recipe_path.exists()):
                    raise UserError(_read_last_line(worker))  # the same for every seed
                elif not crew.signal_number:
                    failed[worker.run.path.name] = _describe_failure(worker)
                    console.print(failed[worker.run.path.name], soft_wrap=True)
            if time.monotonic() - said > LINE_EVERY:
                said = time.monotonic()
                console.print(", ".join(map(_describe_progress, crew.workers)))
        if crew.signal_number and done < len(jobs):
            raise StoppedError(
                f"Stopped by {signal_name(crew.signal_number)}: {len(jobs) - done} of {len(jobs)} "
                f"seeds are not finished; those that were training have saved a step. {AGAIN}",
                crew.signal_number,
            )
    return failed


@contextlib.contextmanager
def _forward_signals() -> Iterator[_Crew]:
    """Forward stop signals to the processes that this one started, and wait for them."""
    crew = _Crew()
    before = set_handler(crew.stop)
    try:
        yield crew
    except BaseException:
        crew.stop(signal.SIGTERM)
        for worker in crew.workers:
            worker.process.wait()
        raise
    finally:
        restore_handlers(before)


def _start(
    data: str, job: PretrainOptions, place: int, parallel: int, gpus: Sequence[str]
) -> _Worker:
    """Start a process for one seed, on its own GPU or with its share of the cores."""
    out = Path(str(job.out))
    words = [sys.executable, "-m", "selfsight", "pretrain", data, "--out", str(out), "--resume"]
    environment = dict(os.environ)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    else:
        threads = max(1, torch.get_num_threads() // parallel)
        environment["OMP_NUM_THREADS"] = str(threads)
    output = out.with_name(f"{out.name}.log")
    with explain_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with _open_output(output) as file:
            process = subprocess.Popen(
                [*words, *write_flags(job)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C reaches it through this process only
            )
    return _Worker(job, place, process, output)


def _open_output(path: Path) -> IO[bytes]:
    path.unlink(missing_ok=True)  # a link is replaced, not followed
    return path.open("xb")


def _read_last_line(worker: _Worker) -> str:
    with worker.output.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LAST_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "it printed nothing")
    return last.removeprefix("selfsight: ")


def _describe_failure(worker: _Worker) -> str:
    """Quote the last line that a process printed."""
    status = worker.process.returncode
    how = f"ended with status {status}" if status > 0 else f"was killed by {signal_name(-status)}"
    last = _read_last_line(worker).rstrip(".")
    return f"Seed {worker.job.seed} {how}: {last} ({worker.output})."


def _describe_progress(worker: _Worker) -> str:
    records = worker.run.records()
    epoch = f"epoch {records[-1]['epoch']:.1f}" if records else "no record yet"
    return f"seed {worker.job.seed}: {epoch}"


def _print_summary(runs: Sequence[Run], console: Console) -> None:
    """Print a line for each run, then mean and standard deviation over the seeds."""
    if not runs:
        return
    found = compare(runs)
    verdicts = {run.path.name: (run.result("verdict") or {}).get("verdict", "") for run in runs}
    table = [{"run": name, "verdict": word} for name, word in verdicts.items()]
    out = open_console()
    out.print("", build_table(table))
    out.print(build_table(format_records(found.records)))
    if found.spreads:
        out.print(build_table(tabulate_seeds(found.spreads), title="over seeds"))
    folders = " ".join(run.shell_path for run in runs)
    console.print(f"Overlay their curves: selfsight report {folders}", soft_wrap=True)
    console.print(f"Compare them:         selfsight evaluate {folders} --compare", soft_wrap=True)
