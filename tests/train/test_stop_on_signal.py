"""Signals: all processes stop after the same step, and a program ends with a sentence."""

import os
import signal
import subprocess
import sys
import time

from selfsight import dist
from selfsight.errors import UserError
from selfsight.train.stop_on_signal import Request, StopRequest


def train_until_signal(rank, number):
    """Count steps until all agree to stop; the process of this rank gets a signal at step 3."""
    with StopRequest() as stop:
        for step in range(1, 20):
            if step == 3 and dist.rank() == rank:
                os.kill(os.getpid(), number)
            request = stop.agree(save=False, now=False)
            if request.signal_number:
                return step, request.signal_number
            time.sleep(0.01 * dist.rank())  # one process is slower
    return None


def test_a_signal_to_one_process_stops_all_after_the_same_step(two_processes):
    for rank, number in ((0, signal.SIGTERM), (1, signal.SIGUSR1), (1, signal.SIGINT)):
        assert two_processes(train_until_signal, rank, number) == [(4, number)] * 2


def agree_at_the_last_step():
    with StopRequest() as stop:
        first = stop.agree(save=dist.rank() == 1, now=False)
        return first, stop.agree(save=False, now=True)


def test_a_process_that_wants_a_checkpoint_gets_one_from_all(two_processes):
    assert two_processes(agree_at_the_last_step) == [(Request(), Request(save=True))] * 2


def refuse_on_the_first():
    def refuse():
        raise UserError("the folder is taken")

    try:
        dist.on_first(refuse)
    except UserError as error:
        return str(error), dist.on_first(dist.rank)


def test_an_error_of_the_first_process_is_raised_by_all(two_processes):
    assert two_processes(refuse_on_the_first) == [("the folder is taken", 0)] * 2


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        handlers = [signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)]
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.agree(save=True, now=False) == Request(save=True)
        assert handlers == [
            signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
        ]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_during_imports_ends_with_a_sentence_and_130():
    """The module that is imported first sends the signal, and then still imports."""
    program = (
        "import os, signal, sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tyro': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from selfsight.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert "stopped by Ctrl-C" in done.stderr and "Traceback" not in done.stderr
