"""Use a trained encoder: load it, export it for other libraries, embed images with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from selfsight import auto_recipe, dist
from selfsight.errors import UserError
from selfsight.exporters.export_encoder import export_encoder
from selfsight.options import (
    EMBED_DEFAULTS,
    EXPORT_DEFAULTS,
    EmbedOptions,
    EncoderOptions,
    ExportOptions,
)
from selfsight.recipe import eval_transform
from selfsight.run_folder import Run, open_run
from selfsight.runs import embed as embedding
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
    name, folder = _choose_folder(run, options, "export", str(options.to))
    written = export_encoder(name, Path(options.out or folder), options)
    if not quiet:
        print(f"{written['network']}: {written['trained']}")  # also of a run that is not finished
        print(f"Wrote {', '.join(written['files'])} to {written['folder']}. Load it:\n")
        print(f"{written['lines']}\n")
        if written["license"] is None:
            print("README.md states no license: add one with --license before you publish it.")
    return written


def embed(
    run: Run | str | Path | None,
    data: str | Path,
    options: EmbedOptions = EMBED_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Write a vector for each image, by the encoder of a run or any other; returns a summary.

    Keywords are the fields of EmbedOptions: `embed(run, "photos/", format="npy")`, or
    `embed(None, "photos/", backbone="timm:resnet50")`. The same call goes on where an earlier one
    was stopped. A file of a run's checkpoints can be given in place of the run.
    """
    check_setting("data", data, str | Path)
    options = replace(options, **changes)
    images = Path(str(data).split(":")[-1]).stem or "images"
    split = f"-{options.split}" if options.split else ""
    name, folder = _choose_folder(run, options, "embeddings", f"{images}{split}")
    device = auto_recipe.resolve_device(options.device)
    written = embedding.embed(name, str(data), Path(options.out or folder), device, options)
    if not quiet and dist.prints():
        print(embedding.describe(written))
    return written


def _choose_folder(
    run: Run | str | Path | None, options: EncoderOptions, kind: str, name: str
) -> tuple[str, Path]:
    """The name of the encoder, and the folder for what is written unless --out is given."""
    check_one_encoder(run, options)
    if run is None:
        encoder = str(options.backbone)
        parent = "exports" if kind == "export" else kind
        return encoder, Path(parent) / run_lock.file_name(f"{encoder}-{name}")
    where = _find_checkpoint(run)
    kept = f"-{where.file.stem}" if where.file else ""
    folder = where.run.path / kind / run_lock.file_name(f"{name}{kept}")
    return str(where.file or where.run.path), folder


def _find_checkpoint(run: Run | str | Path) -> RunCheckpoint:
    """The last checkpoint of a run, or the one that a file names."""
    where = None if isinstance(run, Run) else find_checkpoint(run)
    return where or RunCheckpoint(open_run(run))


def check_one_encoder(run: Run | str | Path | None, options: EncoderOptions) -> None:
    """Raise a UserError unless there is a run or a backbone, not both."""
    if (run is None) == (options.backbone is None):
        raise UserError("Give a run folder or --backbone, one of them.")
