"""`python -m tests.data.decoders.resize_compiled`: the shrinking kernel, for an H100 or H200."""

import json

from triton.runtime.jit import JITFunction

from selfsight.data.decoders.resize_to_store import resize_each_in_one_launch
from tests.data.decoders.resize_interpreted import images
from tests.views.compiled import compile_only

if __name__ == "__main__":
    found: list[dict] = []
    JITFunction.run = compile_only(found)
    for channels in (1, 3):
        resize_each_in_one_launch(*images(channels))
    print(json.dumps(found))
