"""The process group of the tests, whose server imports what they need once."""

from functools import partial

from selfsight.conformance.start_processes import ProcessGroup

Processes = partial(ProcessGroup, preload=("tests.dist.preload",))
