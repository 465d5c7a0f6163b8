"""The driver: a run that was stopped goes on to the same numbers, bit for bit."""

import contextlib
import functools
import gc
import itertools
import json
import math
import os
import pickle
import re
import shutil
import signal
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from selfsight import api
from selfsight.catalog import build_recipe
from selfsight.encoders import untrained_network
from selfsight.encoders.load_encoder import load_encoder, load_recipe
from selfsight.encoders.untrained_network import build_untrained
from selfsight.errors import DivergedError, StoppedError, UserError
from selfsight.run_files.json_files import WriteError
from selfsight.run_files.run_folder import Run
from selfsight.runs import start_or_resume
from selfsight.stopwatch import Stopwatch
from selfsight.train import checkpoint, checkpoint_schedule, cuda_graph
from selfsight.train import pretrain as driver
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from tests.folders import images, largest_file
from tests.methods.small import SMALL
from tests.recipes.small import images as small_images
from tests.recipes.small import shrink

KEPT = (1, 2)  # epochs
TIMES = ("time", "first_step", "images_per_second", "data_wait")
SLIM = (
    "--backbone.name",
    "resnet8_narrow",
    "--log-every",
    "1",
    "--measure-every",
    "1",
    "--save-every",
    "1",
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two batches of 8 an epoch, and two images that are left over."""
    return images(tmp_path_factory.mktemp("data") / "photos", count=18)


def pretrain(photos, out, name, epochs=3, **more):
    """Train for six steps, two an epoch, unless told otherwise."""
    small = SMALL[name]
    flags = [w for k, v in small.items() for w in flag(f"method.{k}", v)]
    return api.pretrain(
        photos,
        method=name,
        epochs=epochs,
        batch_size=8,
        device="cpu",
        out=out,
        labels=True,
        keep_epochs=KEPT,
        settings=[*flags, *SLIM],
        **more,
    )


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A finished run, trained once; tests may only read it."""
    return pretrain(photos, tmp_path_factory.mktemp("finished") / "moco", "moco")


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of a finished run that a test may damage."""
    return Run(shutil.copytree(finished.path, tmp_path / "run"))


def flag(name, value):
    name = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [name if value else name.replace(".", ".no-")]
    return [name, *map(str, value if isinstance(value, tuple) else [value])]


def same(a, b):
    """Equal in every bit of every tensor and in every other value."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class Killed(BaseException):
    """What a kill looks like from inside."""


@contextlib.contextmanager
def killed(after):
    """A run in here dies once it has logged this step."""
    log = Run.log

    def log_and_die(self, record):
        log(self, record)
        if record["step"] == after:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", log_and_die)
        with pytest.raises(Killed):
            yield


@contextlib.contextmanager
def killed_while_keeping(epoch=2):
    """A run in here dies before it has kept the checkpoint of this epoch."""
    keep = checkpoint.keep

    def keep_or_die(run, state, at):
        if at == epoch:
            raise Killed
        keep(run, state, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "keep", keep_or_die)
        with pytest.raises(Killed):
            yield


def test_a_run_that_is_stopped_again_and_again_goes_on_to_the_same_bits(finished, photos, tmp_path):
    """Before the first checkpoint (step 1), after it (3 of 6), and at the second (4)."""
    with killed(1):
        pretrain(photos, tmp_path / "cut", "moco")
    for death in (killed(3), killed_while_keeping(2)):
        with death:
            pretrain(photos, tmp_path / "cut", "moco", resume=True)
    resumed = pretrain(photos, tmp_path / "cut", "moco", resume=True)
    one, other = checkpoint.load(finished), checkpoint.load(resumed)
    assert one["step"] == other["step"] == 6
    assert same(one, other)
    for epoch in KEPT:
        one, other = (
            torch.load(run.kept_checkpoint(epoch), weights_only=True) for run in (finished, resumed)
        )
        assert one["step"] == other["step"] == 2 * epoch
        assert same(one, other)

    def numbers(run):
        return [{k: v for k, v in r.items() if k not in TIMES} for r in run.records()]

    assert numbers(resumed) == numbers(finished)


def test_an_epoch_to_keep_that_the_run_does_not_reach_is_said_at_once(photos, tmp_path):
    with pytest.raises(UserError, match=r"keep_epochs has 50, but the epochs .* are 1 to 2"):
        api.pretrain(photos, epochs=2, keep_epochs=(1, 50), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_signal_saves_at_the_step_it_comes_and_the_run_goes_on_to_the_same_bits(
    finished, photos, tmp_path
):
    """One at each step from the first on, in the middle of epochs and at the end of one."""
    log, signals = Run.log, ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"]
    start = functools.partial(pretrain, photos, tmp_path / "cut", "moco")
    for step, number in enumerate([getattr(signal, name) for name in signals], 1):

        def log_and_signal(run, record, step=step, number=number):
            log(run, record)
            assert record["step"] == step
            os.kill(os.getpid(), number)

        sentence = rf"at step {step} of 6.*of step {step}, is kept"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "log", log_and_signal)
            with pytest.raises(StoppedError, match=sentence) as stopped:
                start()
        start = functools.partial(api.resume, tmp_path / "cut")
        assert stopped.value.signal_number == number
        assert checkpoint.load(Run(tmp_path / "cut"))["step"] == step
    resumed = api.resume(tmp_path / "cut")
    assert same(checkpoint.load(finished), checkpoint.load(resumed))
    times = [record["time"] for record in resumed.records()]
    assert times == sorted(times)


def test_checkpoints_come_every_so_many_steps_or_minutes(photos, tmp_path):
    """Every third step, and whenever the clock, which runs for two steps here, says so."""
    steps, save = [], checkpoint.save

    def count(run, state):
        steps.append(state["step"])
        save(run, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", count)
        clock = itertools.count(step=30)  # read once per step and once per checkpoint
        patch.setattr(checkpoint_schedule, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        settings = [*SLIM, "--save-every", "9", "--save-steps", "3", "--save-minutes", "1"]
        with killed(7):
            api.pretrain(
                photos,
                method="simclr",
                epochs=4,
                batch_size=8,
                device="cpu",
                out=tmp_path / "run",
                settings=settings,
            )
    assert steps == [2, 3, 5, 6]


def test_a_checkpoint_that_would_run_code_is_not_loaded(copied):
    for name in ("last.pt", "previous.pt"):
        with (copied.checkpoints / name).open("wb") as file:
            pickle.dump(print, file, protocol=2)
    with pytest.raises(ValueError, match="can be used"):
        checkpoint.load(copied)


def test_out_of_memory_finds_the_batch_that_fits(photos, tmp_path, monkeypatch):
    """A stand-in for a memory: one method, 4 images, or 2 once the optimizer has its state."""
    step, alive = cuda_graph.optimizer_step, weakref.WeakSet()

    def step_in_small_memory(state, forward, batch, *rest, **more):
        alive.add(state.method)
        most = 2 if state.optimizer.state else 4
        if len(batch.index) > most or len(alive) > 1:
            raise torch.OutOfMemoryError
        return step(state, forward, batch, *rest, **more)

    monkeypatch.setattr(cuda_graph, "optimizer_step", step_in_small_memory)
    flags = [*SLIM[:4], "--optim.schedule.warmup-epochs", "0"]
    settings = {"epochs": 1, "device": "cpu", "settings": flags}
    with killed(2):
        api.pretrain(photos, out=tmp_path / "auto", batch_size=None, **settings)
    assert api.load_recipe(Run(tmp_path / "auto")).batch_size == 2
    gc.collect()
    settings["recipe"] = "simclr.shapes"
    with pytest.raises(ValueError, match=r"8 does not fit .* Use --batch-size 2 --overwrite"):
        api.pretrain(photos, batch_size=8, out=tmp_path / "named", **settings)
    gc.collect()
    with killed(2):
        api.pretrain(photos, batch_size=2, overwrite=True, out=tmp_path / "named", **settings)


def test_a_run_is_not_resumed_with_other_images(tmp_path):
    """Epochs would end elsewhere, and rows of a memory be another's."""
    folder = images(tmp_path / "photos", count=18)
    with killed(3):
        pretrain(folder, tmp_path / "run", "instdisc")
    (tmp_path / "copy").mkdir()
    files = sorted(folder.rglob("*.*"))
    for number, file in enumerate(files[:10]):
        file.rename(tmp_path / "copy" / f"{number}.jpg")
        shutil.copyfile(files[-1 - number % 8], file)
    with pytest.raises(UserError, match="the sizes and bytes of the images differ"):
        api.resume(tmp_path / "run")
    for number, file in enumerate(files[:10]):
        (tmp_path / "copy" / f"{number}.jpg").rename(file)
    for file in files[:4]:
        file.unlink()
    with pytest.raises(UserError, match="14 images instead of 18"):
        api.resume(tmp_path / "run")


OTHER_SETTINGS = {
    "seed is 1 in the command and 0 in the run": {"seed": 1},
    "method is byol in the command and simclr in the run": {"method": "byol"},
    "epochs is 4 in the command and 3 in the run": {"epochs": 4},
    "optim.lr is 0.5 in the command and 0.01 in the run": {"settings": ["--optim.lr", "0.5"]},
    "data.labels is True in the command and False in the run": {"labels": True},
    "views.0.order is .* in the command and .* in the run.* and 4 more": {
        "method": None,
        "recipe": "simclr.shapes",
    },
}


def test_a_command_with_other_settings_does_not_resume_a_run(photos, tmp_path):
    command = {"method": "simclr", "epochs": 3, "batch_size": 8, "device": "cpu"}
    command |= {"out": tmp_path / "run", "resume": True}
    with killed(1):
        api.pretrain(photos, **command | {"settings": SLIM})
    for sentence, change in OTHER_SETTINGS.items():
        with pytest.raises(UserError, match=sentence):
            api.pretrain(photos, **command | change)
    other = images(tmp_path / "other", count=18)
    with pytest.raises(UserError, match=r"data.path is .*other in the command"):
        api.pretrain(other, **command)
    (tmp_path / "link").symlink_to(photos)  # the same images by another name
    with killed(2):
        api.pretrain(tmp_path / "link", **command | {"settings": SLIM})


@contextlib.contextmanager
def full_disk(run):
    """No file may become larger than the log is."""
    with largest_file(run.log_path.stat().st_size):
        yield


@contextlib.contextmanager
def deleted_folder(run):
    shutil.rmtree(run.path)
    yield


FAULTS = {
    "log.jsonl cannot be written: File too large. Raise the limit of the size of a file (ulimit "
    "-f), or choose another disk. The last good checkpoint, of step 2, is kept. When": full_disk,
    "log.jsonl cannot be written: No such file or directory. Check the name; it may have been "
    "deleted meanwhile. Its checkpoints are gone": deleted_folder,
}


def test_a_disk_that_fills_or_a_folder_that_is_deleted_gets_a_sentence(photos, tmp_path):
    """At step 3, first of a new run and then of the resumed one."""
    log = Run.log
    for sentence, break_it in FAULTS.items():

        def log_and_break(run, record, break_it=break_it):
            log(run, record)
            if record["step"] == 3:
                fault.enter_context(break_it(run))

        with contextlib.ExitStack() as fault, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "log", log_and_break)
            with pytest.raises(WriteError, match=re.escape(sentence)):
                pretrain(photos, tmp_path / "run", "simclr", resume=break_it is deleted_folder)
        if break_it is full_disk:
            assert checkpoint.load(Run(tmp_path / "run"))["step"] == 2


def test_a_memory_that_does_not_fit_is_refused_before_anything_is_decoded(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    monkeypatch.setattr(start_or_resume, "open_recipe_images", None)
    with pytest.raises(UserError, match="for each of 18 images takes 576 bytes"):
        pretrain(photos, tmp_path / "run", "instdisc")


def test_a_diverged_run_stops_with_a_sentence(photos, tmp_path, monkeypatch):
    """No record after the first step is finite, so its weights are not a good checkpoint."""
    monkeypatch.setattr(driver, "train", exploding(driver.train, after=1))
    with pytest.raises(
        DivergedError, match=r"Lower --optim\.lr.*step 1, which may be spoiled.*no other"
    ):
        api.pretrain(
            photos,
            method="simclr",
            epochs=4,
            batch_size=8,
            device="cpu",
            out=tmp_path / "run",
            settings=["--save-steps", "1", *SLIM],
        )
    assert checkpoint.load(Run(tmp_path / "run")) is None


def test_after_divergence_the_last_good_checkpoint_is_kept(copied, monkeypatch):
    """Two steps go well, at the third the weights explode, and none after that has a gradient."""
    recipe = api.load_recipe(copied)
    (copied.results / "verdict.json").unlink()
    checkpoint.set_last_aside(copied)  # from step 4 on
    longer = replace(recipe, epochs=12, save_steps=1)
    monkeypatch.setattr(driver, "train", exploding(driver.train, after=6))
    with pytest.raises(DivergedError, match="The last good checkpoint, of step 5, is kept"):
        start_or_resume.resume_run(
            longer, copied, torch.device("cpu"), Console(quiet=True), Stopwatch()
        )
    assert checkpoint.load(copied)["step"] == 5
    assert (copied.checkpoints / "diverged.pt").exists()


def exploding(train, after):
    def trained(state, *words, **more):
        for found in train(state, *words, **more):
            if state.step == after:
                with torch.no_grad():
                    next(state.method.student.parameters()).fill_(3e38)
            yield found

    return trained


def without_gradients(monkeypatch, steps, first=0):
    """From step `first` on the first weights of a method have no finite gradient for `steps`."""
    build, number = driver.build_method, itertools.count()

    def spoiled(grad):
        return grad * math.nan if first <= next(number) < first + steps else grad

    def built(*words, **more):
        method = build(*words, **more)
        next(method.student.parameters()).register_hook(spoiled)
        return method

    monkeypatch.setattr(driver, "build_method", built)


def test_a_run_that_takes_no_step_stops_though_its_loss_is_finite(photos, tmp_path, monkeypatch):
    without_gradients(monkeypatch, steps=100)
    with pytest.raises(DivergedError, match="By step 10 10 steps in a row had no finite gradient"):
        pretrain(photos, tmp_path / "run", "simclr", epochs=5)


def test_skipped_steps_are_counted_shown_and_reported(photos, tmp_path, monkeypatch, capsys):
    without_gradients(monkeypatch, steps=3)
    found = pretrain(photos, tmp_path / "run", "simclr", epochs=2)
    assert [r["skipped_steps"] for r in found.records()] == [1, 2, 3, 3]
    assert (
        "3 of 4 steps were skipped because their gradient was not finite"
        in found.result("verdict")["sentence"]
    )
    assert "3 steps skipped" in capsys.readouterr().err


def test_a_run_whose_last_step_is_skipped_has_its_last_checkpoint(photos, tmp_path, monkeypatch):
    without_gradients(monkeypatch, steps=9, first=3)
    found = pretrain(photos, tmp_path / "run", "simclr", epochs=2)
    assert found.records()[-1]["skipped_steps"] == 1
    assert checkpoint.load(found)["step"] == 4


def test_a_streak_that_ended_before_the_record_is_seen():
    scaler = GradScaler(torch.device("cpu"), enabled=False)
    for value in (1.0, math.nan, math.nan, 1.0, math.nan):
        scaler.unscale([torch.tensor([value])], torch.tensor(0))
    assert scaler.read_longest_run() == 2
    scaler.unscale([torch.tensor([1.0])], torch.tensor(0))
    assert scaler.read_longest_run() == 1  # the streak that the first record cut in two
    assert scaler.read_longest_run() == 0


def test_the_shown_loss_is_that_of_the_first_weights(finished):
    """The driver changes nothing before the first step: its first loss is a plain forward's."""
    from selfsight.train.init_weights import build_method
    from selfsight.train.loop import load_batches

    recipe = api.load_recipe(finished)
    device = torch.device("cpu")
    found = start_or_resume.open_recipe_images(recipe, device)
    from selfsight.data import Loader
    from selfsight.methods import DataInfo, Moment

    loader = Loader(found, batch_size=recipe.batch_size, seed=recipe.seed)
    batch = next(load_batches(loader, recipe, 0))
    method = build_method(recipe, device, DataInfo(len(found), 2))
    at = Moment(
        step=torch.tensor(0), index=batch.index, seed=recipe.seed, total_steps=6, steps_per_epoch=2
    )
    assert method(batch.views, at).loss.item() == finished.records()[0]["loss"]


def test_load_gives_the_backbone_with_the_trained_weights(finished):
    encoder = api.load(finished)
    assert not encoder.training
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, encoder.dim)
    saved = checkpoint.load(finished)["method"]["student.backbone.conv1.weight"]
    assert torch.equal(encoder.backbone.conv1.weight, saved)


def test_the_untrained_network_has_the_statistics_that_the_images_give_it(finished):
    encoder = load_encoder(str(finished.path), torch.device("cpu"))
    initial = build_method(load_recipe(finished), torch.device("cpu")).student.backbone.state_dict()
    untrained = build_untrained(encoder, torch.device("cpu")).network.state_dict()
    for name, value in untrained.items():
        tracked = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(value, initial[name]) != tracked, name
    steps = [v for k, v in untrained.items() if k.endswith("num_batches_tracked")]
    assert set(map(int, steps)) == {6}


def test_all_seconds_of_a_run_are_accounted_for(finished):
    seconds = json.loads(finished.seconds_path.read_text())
    total = seconds.pop("total")
    assert sum(seconds.values()) == pytest.approx(total, abs=0.05)
    assert min(seconds[phase] for phase in ("compile", "steps", "evaluation", "report")) > 0
    assert seconds["graph"] == 0 and total >= finished.logged_seconds()


def test_an_untrained_network_without_batch_norm_reads_no_images(tmp_path, monkeypatch):
    recipe = shrink(build_recipe("mocov3.imagenet_vit_s16_300ep"))
    recipe = replace(recipe, method=replace(recipe.method, norm="ln"))
    monkeypatch.setattr(untrained_network, "read_batches", None)  # calling it would fail
    student = untrained_network.build_untrained_student(
        recipe, small_images(), torch.device("cpu"), steps=10, run=Run(tmp_path)
    )
    assert student.backbone.dim == 24
    assert not Run(tmp_path).untrained_statistics.exists()


def test_the_time_of_a_stopped_process_counts_after_a_resume(tmp_path):
    run = Run(tmp_path)
    run.log({"step": 5, "epoch": 1.0, "time": 4.0})
    assert run.logged_seconds() == 4.0  # of a process that was killed
    for _ in range(2):
        run.log_seconds({"imports": 3.0, "data": 2.0, "compile": 1.0, "steps": 20.0, "total": 26.0})
    assert run.logged_seconds() == 42.0
