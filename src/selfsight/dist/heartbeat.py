"""End a process when another one of its run has ended, or no longer answers."""

import os
import threading

from selfsight.dist.rendezvous import FAILED, LEFT, Members, call_within, capitalize, timeout

BEAT = 1.0  # seconds between heartbeats
SILENCE = 60.0  # seconds without one after which a process counts as lost
GRACE = 5.0  # seconds for the main thread to end by itself


class Heartbeat:
    """Threads that write heartbeats to the store, and check those of the other processes.

    A process that waits for another is often inside a library, where no exception reaches it. So
    if it does not end on its own, a thread prints the reason and ends it.
    """

    def __init__(self, members: Members) -> None:
        self.members, self.silence = members, min(SILENCE, timeout())
        self.beat = min(BEAT, self.silence / 4)
        self.store = members.store.clone()  # another thread may wait in the first connection
        self.own_key = f"{members.keys}/beat/{members.place.rank}"
        self.done, self.found = threading.Event(), threading.Event()
        self.reason = ""  # why this process must end, once `found`
        self.rounds, self.beats = 0, [b""] * members.place.world_size
        self.failure: str | None = None
        self.threads = [
            threading.Thread(target=work, name=f"heartbeat {work.__name__}", daemon=True)
            for work in (self._talk, self._judge)
        ]

    def __enter__(self) -> "Heartbeat":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        # A thread inside the store when Python ends would abort the process, and one that still
        # beats would hide that this process has left. One that gets no answer is not waited for.
        for thread in self.threads:
            thread.join(self.beat)
        call_within(self.beat, lambda: self.store.set(self.own_key, LEFT))

    def find_reason(self, seconds: float) -> str | None:
        """Wait this long for the reason why another process does not answer."""
        return self.reason if self.found.wait(seconds) else None

    def _talk(self) -> None:
        """Exchange heartbeats; every call waits until the store answers."""
        keys = self.members.keys
        names = [f"{keys}/beat/{rank}" for rank in range(self.members.place.world_size)]
        try:
            while not self.done.is_set():
                self.store.set(self.own_key, str(self.rounds))
                if self.store.check([f"{keys}/{FAILED}"]):
                    self.failure = self.store.get(f"{keys}/{FAILED}").decode()
                    return
                self.beats = [self.store.get(n) if self.store.check([n]) else b"" for n in names]
                self.rounds += 1
                self.done.wait(self.beat)
        except RuntimeError:  # torch's DistError
            self.failure = f"{self.members.describe(0)} has ended or cannot be reached."

    def _judge(self) -> None:
        """Count beats, not seconds: all processes may be paused for a while, and continue."""
        world_size = self.members.place.world_size
        last, missed = (0, self.beats), [0] * world_size
        while not self.done.wait(self.beat):
            if self.failure is not None:
                return self._end(self.failure)
            now = self.rounds, self.beats
            for rank in range(world_size):
                before, after = last[1][rank], now[1][rank]
                talks = now[0] > last[0] and (before != after or after == LEFT.encode())
                # Without an answer of the store only its process is known to be silent.
                missed[rank] += now[0] > last[0] or rank == 0
                missed[rank] = 0 if talks else missed[rank]
                if missed[rank] * self.beat > self.silence:
                    return self._end(
                        f"{self.members.describe(rank)} has not answered for {self.silence:g} s: "
                        "it was stopped or killed, or its machine is lost."
                    )
            last = now
        return None

    def _end(self, reason: str) -> None:
        """Give the main thread time to end with its own message; then say why, and exit."""
        self.reason = capitalize(reason)
        self.found.set()
        if self.done.wait(GRACE):
            return
        os.write(2, f"\nselfsight: {self.reason}\n".encode())
        call_within(self.beat, lambda: self.store.add(f"{self.members.keys}/{LEFT}", 1))
        os._exit(1)
