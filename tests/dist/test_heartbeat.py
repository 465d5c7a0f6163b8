"""Heartbeats end with the group, before Python does."""

import time

from selfsight.dist.heartbeat import Heartbeat
from selfsight.dist.rendezvous import LEFT, Members, Place


class SlowStore:
    """A store that takes a while to write."""

    def __init__(self):
        self.values, self.writes = {}, 0

    def clone(self):
        return self

    def set(self, key, value):
        self.writes += 1
        time.sleep(0.1)
        self.values[key] = value.encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


def test_threads_are_gone_and_the_last_beat_says_that_the_process_has_left():
    store = SlowStore()
    place = Place(rank=0, world_size=2, host="localhost", port=1)
    members = Members(place, store, "group", ["a", "b"])
    with Heartbeat(members) as watch:
        while not store.writes:
            time.sleep(0.01)  # a thread is inside the store when the group ends

    assert not any(thread.is_alive() for thread in watch.threads)
    assert store.values["group/beat/0"] == LEFT.encode()
    time.sleep(0.3)
    assert store.writes == 2
