"""Use a trained encoder: load it, and export it for other libraries."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from selfsight import auto_recipe
from selfsight.errors import UserError
from selfsight.exporters.export_encoder import export_encoder
from selfsight.options import EXPORT_DEFAULTS, EncoderOptions, ExportOptions
from selfsight.recipe import eval_transform
from selfsight.run_folder import Run, open_run
from selfsight.runs import run_lock
from selfsight.runs.encoders import load_recipe
from selfsight.runs.image_encoder import ImageEncoder
from selfsight.runs.load_method import RunCheckpoint, find_checkpoint, load_method
from selfsight.settings import check_setting


def load(run: Run | str | Path, *, device: str = "cpu", trust: bool = False) -> ImageEncoder:
    """Load the encoder of a run, in evaluation mode.

    `load(run).encode(["a.jpg", "b.jpg"])` gives a feature for each image, and
    `load(run).transform` what is done to an image before it is encoded. The last checkpoint is
    loaded, or the one that a file names: `load("RUN/checkpoints/epoch_10.pt")`. `trust` lets its
    recipe run code from outside selfsight.
    """
    check_setting("run", run, Run | str | Path)
    where = _find_checkpoint(run)
    recipe = load_recipe(where.run, trust=trust)
    method = load_method(where, recipe, auto_recipe.resolve_device(device))
    return ImageEncoder(method.student.backbone, eval_transform(recipe)).eval()


def export(
    run: Run | str | Path | None = None,
    options: ExportOptions = EXPORT_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Write the encoder of a run, or any other, for another library; returns what was written.

    Keywords are the fields of ExportOptions: `export(run, to="timm")`. `lines` of the result is
    the code that loads it. A file of a run's checkpoints can be given in place of the run.
    """
    options = replace(options, **changes)
    check_one_encoder(run, options)
    if run is None:
        name = str(options.backbone)
        folder = Path("exports") / run_lock.file_name(f"{name}-{options.to}")
    else:
        where = _find_checkpoint(run)
        name = str(where.file or where.run.path)
        kept = f"-{where.file.stem}" if where.file else ""
        folder = where.run.path / "export" / f"{options.to}{kept}"
    written = export_encoder(name, Path(options.out or folder), options)
    if not quiet:
        print(f"Wrote {', '.join(written['files'])} to {written['folder']}. Load it:\n")
        print(f"{written['lines']}\n")
        if written["license"] is None:
            print("README.md states no license: add one with --license before you publish it.")
    return written


def _find_checkpoint(run: Run | str | Path) -> RunCheckpoint:
    """The last checkpoint of a run, or the one that a file names."""
    where = None if isinstance(run, Run) else find_checkpoint(run)
    return where or RunCheckpoint(open_run(run))


def check_one_encoder(run: Run | str | Path | None, options: EncoderOptions) -> None:
    """Raise a UserError unless there is a run or a backbone, not both."""
    if (run is None) == (options.backbone is None):
        raise UserError("Give a run folder or --backbone, one of them.")
