"""Imports collect no garbage, and collections go on afterward."""

import gc
import subprocess
import sys
import threading

import pytest

from selfsight.garbage_collection import frozen_imports, no_garbage_collection


def test_no_garbage_is_collected_until_the_end_or_an_error():
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), no_garbage_collection():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_threads_may_import_at_the_same_time(first_to_end):
    begun, ends = threading.Barrier(3), [threading.Event(), threading.Event()]

    def run(end):
        with no_garbage_collection():
            begun.wait(5)
            end.wait(5)

    threads = [threading.Thread(target=run, args=[end]) for end in ends]
    for thread in threads:
        thread.start()
    begun.wait(5)
    assert not gc.isenabled()
    for number in (first_to_end, 1 - first_to_end):
        ends[number].set()
        threads[number].join()
    assert gc.isenabled()


def test_a_process_that_has_tensors_freezes_nothing():
    frozen = gc.get_freeze_count()
    with frozen_imports():
        pass
    assert gc.get_freeze_count() == frozen


PRETRAIN = """
import gc, sys
from selfsight.cli.main import main
try:
    main(["pretrain", "/does/not/exist", "--device", "cpu"])
except SystemExit:
    pass
print(gc.isenabled(), "torch" in sys.modules, gc.get_freeze_count() > 100_000)
"""


def test_what_a_new_process_imports_for_training_is_never_looked_at_again():
    done = subprocess.run([sys.executable, "-c", PRETRAIN], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["True True True"], done.stderr
