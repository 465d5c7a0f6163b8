"""Default folders of what an encoder writes: vectors, exports, predictions and classifiers."""

from pathlib import Path

from selfsight.encoders.load_run_networks import RunCheckpoint, find_checkpoint
from selfsight.errors import UserError
from selfsight.options.eval_options import EncoderOptions
from selfsight.run_files.run_folder import Run, open_run
from selfsight.runs.new_run_folder import file_name


def classifier_folder(run: Run | str | Path | None, options: EncoderOptions) -> tuple[str, Path]:
    """The name of the encoder, and the folder of its classifiers."""
    check_one_encoder(run, options)
    if run is None:
        encoder = str(options.backbone)
        return encoder, Path("classifiers") / file_name(encoder)
    where = open_checkpoint(run)
    folder = where.run.path / "classifiers"
    return str(where.file or where.run.path), folder / where.file.stem if where.file else folder


def choose_folder(
    run: Run | str | Path | None, options: EncoderOptions, kind: str, name: str
) -> tuple[str, Path]:
    """The name of the encoder, and the folder to write to: --out or the default."""
    check_one_encoder(run, options)
    if run is None:
        encoder = str(options.backbone)
        parent = "exports" if kind == "export" else kind
        return encoder, Path(parent) / file_name(f"{encoder}-{name}")
    where = open_checkpoint(run)
    kept = f"-{where.file.stem}" if where.file else ""
    folder = where.run.path / kind / file_name(f"{name}{kept}")
    return str(where.file or where.run.path), folder


def open_checkpoint(run: Run | str | Path) -> RunCheckpoint:
    """The last checkpoint of a run, or the one that a file names."""
    where = None if isinstance(run, Run) else find_checkpoint(run)
    return where or RunCheckpoint(open_run(run))


def check_one_encoder(run: Run | str | Path | None, options: EncoderOptions) -> None:
    """Raise a UserError unless there is a run or a backbone, not both."""
    if (run is None) == (options.backbone is None):
        raise UserError("Give a run folder or --backbone, one of them.")
