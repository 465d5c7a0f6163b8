"""Save and load checkpoints: checksums, the last two kept, no code run."""

import contextlib
import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from selfsight import dist
from selfsight.check_settings import show_value
from selfsight.errors import UserError
from selfsight.recipe import Recipe, list_differences, to_dict
from selfsight.run_files.json_files import create_file, explain_write_errors
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import open_console

LAST, PREVIOUS = "last.pt", "previous.pt"
DAMAGED, DIVERGED = "damaged.pt", "diverged.pt"  # renamed to these: never loaded again
BEFORE_SKIPPED = "before_skipped.pt"  # the last one before a skipped step, for a replay
KEYS = {"method", "optimizer", "scaler", "probe", "step"}
MARK = b"sha256:"  # begins the archive's comment, which holds the checksum of all that precedes it
COMMENT_LENGTH = len(MARK) + 64
CHUNK = 2**22  # bytes read at once
MISFITS = (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError)
# Settings by which a checkpoint is known as one of its run: those of another may fit its tensors.
RECORDED = ("method", "backbone", "optim", "seed")
MISMATCH = re.compile(r"size mismatch for (\S+): .*?Size\(\[(.*?)\]\).*?Size\(\[(.*?)\]\)")
Saved = dict[str, Any]


class UnusableError(Exception):
    """A file is not a usable checkpoint of this run; the message is the reason."""


class Loaded(NamedTuple):
    """A checkpoint, the file that holds it, and why newer files could not be used."""

    state: Saved
    path: Path
    unusable: dict[Path, str]


def save(run: Run, state: Saved) -> None:
    """Save the state as the last checkpoint; the old last one becomes the previous one.

    A kill at any moment leaves a complete checkpoint under one of the two names.
    """
    last = run.checkpoints / LAST
    with explain_write_errors(last):
        partial = _write_partial(run, last, state)
        if last.exists():
            os.replace(last, run.checkpoints / PREVIOUS)
        os.replace(partial, last)
        _sync_folder(run.checkpoints)


def keep(run: Run, state: Saved, epoch: int) -> None:
    """Save the state under the name of its epoch, which no later checkpoint replaces."""
    path = run.kept_checkpoint(epoch)
    with explain_write_errors(path):
        os.replace(_write_partial(run, path, state), path)


def load(run: Run, device: torch.device | str = "cpu") -> Saved | None:
    """Load the newest usable checkpoint; None if the run has not saved one."""
    loaded = load_newest(run, device)
    return None if loaded is None else loaded.state


def load_newest(
    run: Run,
    device: torch.device | str = "cpu",
    *,
    use: Callable[[Saved], Any] | None = None,
) -> Loaded | None:
    """Load the newest usable checkpoint, with a note if it is not the last one saved.

    `use` loads it into a network or state; a checkpoint that does not fit is not usable.
    """
    unusable: dict[Path, str] = {}
    for path in (run.checkpoints / LAST, run.checkpoints / PREVIOUS):
        if not path.exists():
            continue
        try:
            state = _read(path, device)
            if use is not None:
                _try_use(use, state, run)
        except UnusableError as error:
            unusable[path] = str(error)
            continue
        for bad, why in unusable.items():
            open_console(stderr=True, quiet=dist.rank() != 0).print(
                f"{bad} cannot be used: it {why}. The checkpoint before it, of step "
                f"{state['step']}, is used: {path.name}.",
                soft_wrap=True,
            )
        return Loaded(state, path, unusable)
    if unusable:
        reasons = "; ".join(f"{path.name} {why}" for path, why in unusable.items())
        what = "recipe.json or a checkpoint" if run.recipe_path.name in reasons else "one"
        raise UserError(
            f"No checkpoint in {run.checkpoints} can be used: {reasons}. Restore {what} from a "
            f"copy, or delete {run.path} and start the run again."
        )
    return None


def load_file(
    run: Run, path: Path, device: torch.device | str = "cpu", *, use: Callable[[Saved], Any]
) -> Saved:
    """Load one file of a run, such as a kept checkpoint; raise a UserError if it is not usable."""
    try:
        state = _read(path, device)
        _try_use(use, state, run)
    except UnusableError as error:
        raise UserError(f"{path} cannot be used: it {error}. Give another checkpoint.") from error
    return state


def set_aside(run: Run, loaded: Loaded) -> None:
    """Rename unusable checkpoints, so that the next save does not replace a good one by them.

    Call it on one process, after all have loaded.
    """
    for path in loaded.unusable:
        os.replace(path, run.checkpoints / DAMAGED)
    if loaded.path.name == PREVIOUS:
        os.replace(loaded.path, run.checkpoints / LAST)


def set_last_aside(run: Run) -> None:
    """Rename the last checkpoint, after which training diverged at once; use the previous one."""
    os.replace(run.checkpoints / LAST, run.checkpoints / DIVERGED)
    if (run.checkpoints / PREVIOUS).exists():
        os.replace(run.checkpoints / PREVIOUS, run.checkpoints / LAST)


def keep_before_skipped(run: Run, name: str) -> None:
    """Link one of the last two checkpoints under a second name, so that it survives later saves."""
    partial = run.checkpoints / f"{BEFORE_SKIPPED}.part"
    with contextlib.suppress(OSError):  # a file system without links: replays begin earlier
        partial.unlink(missing_ok=True)
        os.link(run.checkpoints / name, partial)
        os.replace(partial, run.checkpoints / BEFORE_SKIPPED)
        partial.unlink(missing_ok=True)  # still there if both names were of the same file


def read_step(path: Path) -> int | None:
    """Read the step of a checkpoint without its weights; None if it is not usable."""
    try:
        step = torch.load(path, map_location="meta", weights_only=True, mmap=True)["step"]
    except (pickle.UnpicklingError, EOFError, OSError, *MISFITS):
        return None
    return step if isinstance(step, int) else None


def find_non_finite(state: Saved) -> str | None:
    """Return the name of a weight or an optimizer state that is not finite; None if all are."""
    for name, tensor in _tensors({k: state[k] for k in ("method", "optimizer")}):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return name
    return None


class _HashingFile:
    """A file that computes the checksum of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _write_partial(run: Run, path: Path, state: Saved) -> Path:
    """Write the file that will be renamed to `path`; return its own path."""
    if not run.recipe_path.exists():
        raise OSError(f"{run.recipe_path} is gone, as if the folder had been deleted")
    run.checkpoints.mkdir(exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    _write(partial, state)
    return partial


def _write(path: Path, state: Saved) -> None:
    """Write a zip archive as torch does, then its checksum as the comment of the archive.

    Programs that read the archive ignore the comment.
    """
    try:
        with create_file(path) as file:
            hashing = _HashingFile(file)
            try:
                torch.save(state, hashing)  # type: ignore[arg-type]
            except RuntimeError as error:  # of torch, which ends its archive after a failed write
                raise hashing.failure or error from None
            # Its last two bytes are the length of the comment, which is zero.
            comment = MARK + hashing.digest.hexdigest().encode()
            file.seek(-2, os.SEEK_END)
            file.write(len(comment).to_bytes(2, "little") + comment)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # a full disk has no room for half a file
        raise


def _read(path: Path, device: torch.device | str) -> Saved:
    """Read a checkpoint; raise an UnusableError with the reason if it is not usable."""
    _verify(path)
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except torch.OutOfMemoryError:  # says nothing about the file
        raise
    except (pickle.UnpicklingError, EOFError, OSError, *MISFITS) as error:
        raise UnusableError("cannot be read as a checkpoint") from error
    if not isinstance(state, dict) or not state.keys() >= KEYS:
        raise UnusableError("is not a checkpoint of a run")
    try:
        name = find_non_finite(state)
    except MISFITS as error:
        raise UnusableError("is not a checkpoint of a run") from error
    if name is not None:
        raise UnusableError(f"holds numbers that are not finite ({name})")
    return state


def _verify(path: Path) -> None:
    """Raise an UnusableError unless the file ends in the checksum of all that precedes it."""
    total = hashlib.sha256()
    if path.is_fifo():  # reading it would wait for ever
        raise UnusableError("is a named pipe, not a checkpoint")
    try:
        left = path.stat().st_size - COMMENT_LENGTH - 2
        with path.open("rb") as file:
            while left > 0 and (data := file.read(min(CHUNK, left))):
                total.update(data)
                left -= len(data)
            ending = file.read(COMMENT_LENGTH + 2)
    except OSError as error:
        raise UnusableError(f"cannot be read ({error.strerror})") from error
    total.update(b"\0\0")  # the length of the comment when the checksum was computed
    begins = COMMENT_LENGTH.to_bytes(2, "little") + MARK
    if not ending.startswith(begins):
        raise UnusableError("is damaged, or is not a checkpoint")
    if ending != begins + total.hexdigest().encode():
        raise UnusableError("is damaged: its checksum does not match")


def list_recorded(recipe: Recipe) -> dict[str, Any]:
    """The settings that a checkpoint holds, as plain values."""
    settings: dict[str, Any] = json.loads(json.dumps(to_dict(recipe)))
    return {name: settings[name] for name in RECORDED}


def _try_use(use: Callable[[Saved], Any], state: Saved, run: Run) -> None:
    """Load an intact checkpoint; if it does not fit, it disagrees with recipe.json."""
    try:
        use(state)
    except torch.OutOfMemoryError:
        raise
    except MISFITS as error:
        why = _name_settings(state, run) or _describe_misfit(error)
        raise UnusableError(f"does not fit {run.recipe_path} ({why})") from error


def _name_settings(state: Saved, run: Run) -> str:
    """Name the settings that have changed since the checkpoint was saved."""
    was, now = state.get("settings"), run.saved_recipe()
    if not isinstance(was, dict):
        return ""
    differences = list_differences(was, {name: now.get(name) for name in was})
    return ", ".join(
        f"{name} is {show_value(here)} there, and was {show_value(there)} when it was saved"
        for name, there, here in differences[:3]
    )


def _describe_misfit(error: Exception) -> str:
    """Say in one line why tensors do not fit."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    if found := MISMATCH.search(text):
        name, saved, built = found.groups()
        return f"{name} has the shape [{saved}] in the checkpoint and [{built}] by the recipe"
    return text[:200]


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in nested dicts and lists, with its name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}.{number}")


def _sync_folder(folder: Path) -> None:
    """Flush a folder to disk: otherwise a crash of the machine may undo a rename."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
