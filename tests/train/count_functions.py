"""Count the functions and files that one training step runs through, for docs/architecture.md.

`python -m tests.train.count_functions [--list]` traces one step on the CPU with `sys.setprofile`.
It counts the package's functions, each once. Left out: torch, comprehensions and lambdas, and the
layers of networks (`backbones/` and norm layers) with everything that they call.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

import selfsight
from selfsight.catalog import build_recipe
from selfsight.data.loader import read_batches
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.runs.open_run_images import open_recipe_images
from selfsight.train.cuda_graph import StepRunner
from selfsight.train.loop import load_batches, train
from selfsight.train.pretrain import build_loader, build_state
from selfsight.train.step import Batch, compute_views

PACKAGE = Path(selfsight.__file__).parent
NORM_LAYERS = ("BatchNorm", "GroupedBatchNorm", "StandardizedConv")
CPU = torch.device("cpu")
Functions = set[tuple[str, str]]  # file and qualified name


def trace(call: Callable[[], object]) -> Functions:
    """Run something and return the package's functions that it called."""
    called: Functions = set()
    depth_in_layers = 0

    def profile(frame, event, _):
        nonlocal depth_in_layers
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        if file.startswith("backbones/") or code.co_qualname.split(".")[0] in NORM_LAYERS:
            depth_in_layers += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not depth_in_layers and "<" not in code.co_name:
            called.add((file, code.co_qualname))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


def small_recipe(name: str) -> Recipe:
    """A published recipe with a small network, a batch of 16 digits and a short queue."""
    recipe = build_recipe(name)
    method = replace(recipe.method, bn_group=4)
    if hasattr(method, "queue_size"):
        method = replace(method, queue_size=64)
    data = replace(recipe.data, path="digits", storage="cache", decoder="cpu")
    backbone = replace(recipe.backbone, name="resnet8_narrow")
    return replace(
        recipe, method=method, backbone=backbone, data=data, batch_size=16, precision="float32"
    )


def count(name: str) -> Iterator[tuple[str, Functions]]:
    """Yield the functions of one step, without and with its views, and of the loop around it."""
    recipe = small_recipe(name)
    images = open_recipe_images(recipe, CPU)
    run = Run(Path(tempfile.mkdtemp()))
    loader = build_loader(recipe, images, CPU)
    per_epoch = loader.steps_per_epoch
    epoch, index = loader.indices(0)
    raw = next(read_batches(images, [(epoch, index)], CPU))
    views = compute_views(recipe, raw.images, raw.index, epoch)

    state = build_state(recipe, run, images, CPU)
    run_step = StepRunner(state, recipe, steps_per_epoch=per_epoch, device=CPU)
    given = Batch(views, None, raw.index)
    inside = Batch([], None, raw.index, images=raw.images)
    run_step(given)  # caches are filled by the first step
    yield "step with given views", trace(lambda: run_step(given))
    run_step(inside)
    yield "step that computes its views", trace(lambda: run_step(inside))
    state = build_state(recipe, run, images, CPU)
    batches = load_batches(loader, recipe, 0)
    steps = train(state, batches, recipe, steps_per_epoch=per_epoch, device=CPU)
    next(steps)
    next(steps)
    yield "loop: load, views, step", trace(lambda: next(steps))


def main() -> None:
    """Print the counts for MoCo v2 and MoCo v3."""
    for name in ("moco.cifar10_r18_200ep", "mocov3.cifar10_r18_100ep"):
        for scope, functions in count(name):
            files = {file for file, _ in functions}
            print(f"{name}, {scope}: {len(functions)} functions in {len(files)} files")
            if "--list" in sys.argv:
                print("".join(f"    {file} {function}\n" for file, function in sorted(functions)))


if __name__ == "__main__":
    main()
