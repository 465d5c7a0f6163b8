"""The model card: what the network is, how it was trained, how it is loaded, and its license."""

from typing import Any

from selfsight.encoders.load_run_networks import RunCheckpoint
from selfsight.errors import count_noun, escape
from selfsight.exporters.exported_encoder import CLASSES, ExportedEncoder
from selfsight.methods import BASELINES
from selfsight.train.checkpoint import read_step
from selfsight.version import __version__

# Of Hugging Face, where it is not the target itself.
LIBRARIES = {"hf": "transformers", "safetensors": "selfsight"}


def write_card(
    encoder: ExportedEncoder,
    *,
    target: str,
    lines: str,
    license_name: str | None,
    facts: list[str],
) -> str:
    """Return the text of README.md, with the header that Hugging Face reads."""
    header = ["---"]
    header += [f"license: {license_name}"] if license_name else []
    header += [
        f"library_name: {LIBRARIES.get(target, target)}",
        f"pipeline_tag: image-{'feature-extraction' if encoder.head is None else 'classification'}",
        "tags: [selfsight, self-supervised-learning]",
        "---",
    ]
    transform, (mean, std) = encoder.transform, encoder.statistics
    crop = f"the center {transform.size} x {transform.size} pixels of "
    crop += (
        f"the image with a short side of {transform.resize}"
        if transform.keep_aspect
        else f"the image resized to {transform.resize} x {transform.resize}"
    )
    scaled = "from 0 to 1"
    if not transform.has_bytes:
        scaled = f"scaled so that {list(transform.low)} is 0 and {list(transform.high)} is 1"
    stated = license_name or "not stated. Add it here before you publish the weights."
    sections = [
        "\n".join(header),
        "# An image encoder" if encoder.head is None else "# An image classifier",
        "\n".join(f"- {fact}" for fact in (f"Network: {encoder.shape.name}.", *facts)),
        *_classes(encoder),
        "## Use",
        f"```python\n{lines}\n```",
        "## Input",
        f"{transform.channels} channels, {crop}, {transform.interpolation} with antialiasing, "
        f"{scaled}, then normalized by mean {mean} and std {std}. The same values are in "
        "`preprocessing.json`.",
        "## License",
        f"License of the weights: {stated}",
    ]
    return "\n\n".join(sections) + "\n"


def _classes(encoder: ExportedEncoder) -> list[str]:
    """The section of the classes of a classifier."""
    if encoder.head is None:
        return []
    names = "\n".join(f"{i}. {escape(name)}" for i, name in enumerate(encoder.head.class_names))
    return ["## Classes", f"In the order of the outputs, as in `{CLASSES}`:", names]


def describe_origin(name: str, where: RunCheckpoint | None) -> list[str]:
    """Facts about the training, without names of files, which may be private.

    The verdict is on the last checkpoint, and not told of another one.
    """
    written = f"Written by selfsight {__version__}."
    if where is None:
        return [f"Weights of {name.rpartition('/')[2]}, not trained by selfsight.", written]
    run = where.run
    saved: dict[str, Any] = run.saved_recipe()
    method, images = saved["method"].get("name", "a method of its own"), saved.get("images")
    epochs = _epochs_trained(where)
    length = count_noun(saved["epochs"], "epoch")
    if epochs is not None and epochs < saved["epochs"]:
        length = f"{epochs:g} of {length}"
    count = f" on {images:,} images" if images else ""
    labels = "with" if method in BASELINES else "without"
    facts = [f"Trained {labels} labels by {method}, {length}{count}.", written]
    sentence = (run.result("verdict") or {}).get("sentence") if where.is_last else None
    return facts + ([f"Verdict of the run: {sentence}"] if sentence else [])


def _epochs_trained(where: RunCheckpoint) -> float | None:
    """Epochs until the checkpoint, or until the end of the log."""
    records = where.run.records()
    if where.file is None or where.is_last:
        return records[-1]["epoch"] if records else None
    step = read_step(where.file)
    of_step = next((record for record in records if record["step"] >= step), None)
    if of_step is None:
        return None
    return round(of_step["epoch"] * step / of_step["step"], 2)
