"""Check the options of an evaluation: contradictions, and options that no protocol uses."""

from collections.abc import Mapping

from selfsight.errors import UserError
from selfsight.evals.protocols import ProtocolSpec, get_protocol, requested_amount
from selfsight.options.eval_options import EVAL_DEFAULTS, EvalOptions

DEFAULT_PROTOCOLS = ("knn", "linear")


def check_options(options: EvalOptions) -> None:
    """Raise a UserError for options that contradict each other, before loading weights."""
    for flag, value in (("--out", options.out), ("--part", options.part)):
        if value is not None and options.backbone is None:
            raise UserError(
                f"{flag} is for --backbone; a run has one encoder, and its results are in its own "
                "folder. Leave it out."
            )
    if options.test is not None and options.labeled is None:
        raise UserError("--test needs --labeled: the labeled images to train on.")
    if options.by_class and options.labeled is None:
        raise UserError("--by-class needs --labeled: images whose classes are known.")
    protocols = {name: get_protocol(name) for name in options.protocols or DEFAULT_PROTOCOLS}
    if options.protocols and options.labeled is None:
        for name, spec in protocols.items():
            if spec.data_kind != "images":
                raise UserError(f"{name} needs --labeled: the labeled images to train on.")
    _check_features(options, protocols)
    _check_image_size(options, protocols)
    families = {name.split(".")[0] for name in protocols}
    boxes = any(spec.data_kind == "boxes" for spec in protocols.values())
    trained = any(spec.has_epochs for spec in protocols.values())
    with_classes = any(spec.data_kind != "boxes" for spec in protocols.values())
    labels = requested_amount(options)
    unused = {
        "--k": options.k != EVAL_DEFAULTS.k and not {"knn", "retrieval"} & families,
        "--temperature": options.temperature != EVAL_DEFAULTS.temperature and "knn" not in families,
        "--classes": bool(options.classes) and not with_classes,
        "--share, --per-class or --split-file": labels is not None and "few_labels" not in families,
        "--iterations": options.iterations is not None and not boxes,
        "--epochs": options.epochs is not None and not trained,
        "--batch-size": options.batch_size is not None and not (trained or boxes),
    }
    flags = {flag.split("=")[0].replace("_", "-") for flag in options.settings}
    for name in ("epochs", "batch_size", "iterations"):
        flag = f"--{name.replace('_', '-')}"
        if getattr(options, name) is not None and flag.replace("--", "--set.", 1) in flags:
            raise UserError(f"{flag} and --set.{flag[2:]} are the same setting. Give one of them.")
    if options.settings:
        unused[options.settings[0]] = not any(spec.accepts_flags for spec in protocols.values())
    for flag in (flag for flag, is_unused in unused.items() if is_unused):
        raise UserError(
            f"{flag} is a setting of other protocols than {', '.join(protocols)}. Leave it out, or "
            "name another --protocol; `selfsight evaluate --protocols` lists them."
        )


def _check_features(options: EvalOptions, protocols: Mapping[str, ProtocolSpec]) -> None:
    """Raise a UserError for features that a protocol does not have."""
    if options.last_blocks is None:
        if options.patch_mean:
            raise UserError("--patch-mean needs --last-blocks: the number of blocks, such as 1.")
        return
    if options.features != "backbone":
        raise UserError(
            f"--last-blocks evaluates tokens of the backbone, not of the {options.features}. Leave "
            "--features out."
        )
    if options.labeled is None:
        raise UserError("--last-blocks needs --labeled: labeled images to evaluate it with.")
    for name, spec in protocols.items():
        if not spec.is_frozen:
            raise UserError(
                f"--last-blocks evaluates frozen features of labeled images, which {name} does "
                "not. Leave it out, or name another --protocol, such as linear."
            )


def _check_image_size(options: EvalOptions, protocols: Mapping[str, ProtocolSpec]) -> None:
    """Raise a UserError if no protocol resizes images to --image-size."""
    if options.image_size is None:
        return
    if options.labeled is None and not options.protocols:
        raise UserError("--image-size needs --labeled: the images that have this size.")
    if all(spec.data_kind != "labeled" for spec in protocols.values()):
        raise UserError(
            f"--image-size has no effect on {', '.join(protocols)}: detectors are trained at the "
            "sizes of their settings, and the analysis has the views of training. Leave it out."
        )
