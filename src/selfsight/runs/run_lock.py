"""The lock of a run folder: one process at a time writes to it."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from selfsight import dist
from selfsight.errors import UserError
from selfsight.run_files.json_files import NO_LINK, explain_write_errors
from selfsight.run_files.run_folder import LOCK, Run
from selfsight.runs.new_run_folder import create_folder, restore_unless_begun

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock_run(run: Run) -> Iterator[None]:
    """Create and lock the run folder; raise a UserError if another process trains in it.

    The lock ends with this process, however that ends: the operating system holds it, and no
    worker process inherits it. A folder that stays empty is removed again.
    """
    handle = dist.on_first(lambda: _acquire(run.path))
    try:
        dist.on_first(lambda: restore_unless_begun(run))
        yield
    finally:
        if dist.rank() == 0:
            with contextlib.suppress(OSError):  # for example if the folder was deleted
                (run.path / LOCK).unlink()
                run.path.rmdir()  # fails unless it is empty
            os.close(handle)


def _acquire(folder: Path) -> int:
    """Return the open file that holds the lock; it is not inherited by programs started later."""
    if folder.is_file():
        raise UserError(f"--out {folder} is a file; give a folder.")
    path = folder / LOCK
    while True:
        create_folder(folder)
        with explain_write_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            raise UserError(
                f"{folder} is being written by {holder or 'another process'}. Wait for it, "
                "stop it, or give another folder."
            ) from None
        except OSError:  # a file system without locks
            break
        if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
            break
        os.close(handle)  # the holder removed the file before its lock ended
    with explain_write_errors(path):
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return handle
