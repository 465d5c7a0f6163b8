"""Classify images: train and save a classifier, load it again, predict with it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from selfsight.check_settings import RESTORE
from selfsight.classifiers.classifier_file import SavedClassifier, read_classifier, save_classifier
from selfsight.classifiers.fit_classifier import FINE_TUNE, fine_tune, train_head
from selfsight.classifiers.image_classifier import ImageClassifier
from selfsight.classifiers.predictions_csv import write_predictions
from selfsight.data import Source, open_source
from selfsight.data.decoders.scientific_images import is_photo
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.pixel_statistics import PixelKind, find_kind
from selfsight.dist.rendezvous import find_place
from selfsight.encoders.image_encoder import ImageEncoder
from selfsight.encoders.load_encoder import EncoderUnderTest, load_recipe, load_with_options
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.errors import UserError
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.labeled_data import LabeledData
from selfsight.nn import Backbone
from selfsight.options.encoder_options import CLASSIFY_DEFAULTS, ClassifyOptions
from selfsight.options.eval_options import EncoderOptions, EvalOptions
from selfsight.run_files.json_files import to_json, write_json
from selfsight.runs.labeled_sources import LabeledSources, cut_labeled, open_labeled
from selfsight.runs.open_run_images import cut_like_run
from selfsight.terminal.console import open_console
from selfsight.vectors.embed_images import hash_weights
from selfsight.version import __version__

LOADING = ("image_size", "preprocess", "part", "stem")  # options that decide the encoder


def check_options(options: ClassifyOptions) -> None:
    """Raise a UserError for options that do not work together."""
    if find_place() is not None:
        raise UserError("classify runs in one process. Start it without torchrun.")
    if options.labeled is None and options.predict is None:
        raise UserError(
            "Give --labeled FOLDER to train a classifier, --predict FOLDER to predict images with "
            "one, or both."
        )
    unused = {
        "--labeled": ("test", "label_column", "fine_tune", "by_class"),
        "--predict": ("out", "split"),
        "--fine-tune": ("epochs", "batch_size"),
    }
    for needed, names in unused.items():
        if getattr(options, needed.removeprefix("--").replace("-", "_")):
            continue
        for name in names:
            if getattr(options, name) != getattr(CLASSIFY_DEFAULTS, name):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} needs {needed}. Add {needed}, or leave {flag} out.")


def check_new(path: Path, what: str, *, overwrite: bool) -> None:
    """Raise a UserError if there is a file that must not be replaced, or a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder. Give the name of a file.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} holds {what} already. Add --overwrite, or give another name.")


def train(
    name: str, path: Path, device: torch.device, options: ClassifyOptions
) -> tuple[ImageClassifier, tuple[str, ...]]:
    """Train a classifier with the encoder `name` on the labeled images, measure and save it.

    Return it with sentences about the images.
    """
    eval_options = EvalOptions(
        labeled=options.labeled, test=options.test, label_column=options.label_column
    )
    sources = open_labeled(eval_options, ())
    _check_labels(sources, options)
    kind = None if find_checkpoint(name) is not None else find_kind(sources.train)
    encoder = load_with_options(name, device, options, kind)
    sources = cut_labeled(sources, encoder.recipe)
    data = _load_images(sources, encoder.transform, device)
    weights = hash_weights(encoder.network)
    if options.fine_tune:
        training = replace(FINE_TUNE, batch_size=options.batch_size or FINE_TUNE.batch_size)
        training = training.with_epochs(options.epochs or training.epochs)
        trained = fine_tune(encoder.network, data, training, seed=options.seed)
    else:
        trained = train_head(encoder.network, data, seed=options.seed)
    labels = data.labels()[0]
    sizes = labels.bincount(minlength=data.num_classes).tolist()
    about = {
        "class_names": list(data.class_names),
        "encoder": {"name": name, "weights": weights}
        | {option: getattr(options, option) for option in LOADING},
        "fine_tuned": options.fine_tune,
        "labeled": str(options.labeled),
        "test": None if options.test is None else str(options.test),
        "images": len(labels),
        "images_per_class": dict(zip(data.class_names, sizes, strict=True)),
        "settings": trained.settings,
        "measured": trained.measured,
        "versions": {"selfsight": __version__, "torch": torch.__version__},
    }
    about = to_json(about)
    save_classifier(path, trained.head, trained.network, encoder.transform, about)
    write_json(path.with_suffix(".json"), about)
    network = encoder.network if trained.network is None else trained.network
    return _build(encoder._replace(network=network), trained.head, about), data.notes


def load(name: str, path: Path, device: torch.device, options: EncoderOptions) -> ImageClassifier:
    """Load a classifier with its encoder, which must be the one that it was trained on."""
    saved = read_classifier(path)
    encoder = load_encoder_of(saved, name, device, options)
    return _build(encoder, saved.head.to(device), saved.about)


def load_encoder_of(
    saved: SavedClassifier, name: str, device: torch.device, options: EncoderOptions
) -> EncoderUnderTest:
    """Load the encoder of a classifier, with fine-tuned weights if it has any."""
    recorded: Mapping[str, Any] = saved.about["encoder"]
    for option in LOADING:
        given, default = getattr(options, option), getattr(CLASSIFY_DEFAULTS, option)
        if given not in (default, recorded[option]):
            flag = f"--{option.replace('_', '-')}"
            was = f"without {flag}"
            was = was if recorded[option] == default else f"with {flag} {recorded[option]}"
            raise UserError(
                f"{saved.path} was trained {was}, not with {flag} {given}. Leave {flag} out, or "
                "train another classifier."
            )
    options = replace(options, **{option: recorded[option] for option in LOADING})
    kind = None if find_checkpoint(name) is not None else _kind_of(saved.transform)
    encoder = load_with_options(name, device, options, kind)
    if saved.backbone:
        try:
            encoder.network.load_state_dict(saved.backbone)
        except RuntimeError as error:
            raise UserError(
                f"{saved.path} holds other weights than {name} has: it was trained with the "
                f"encoder {recorded['name']}. Give that one."
            ) from error
    elif hash_weights(encoder.network) != recorded["weights"]:
        raise UserError(
            f"{saved.path} was trained on another encoder than {name} is now: on "
            f"{recorded['name']}, which may have been trained further since. Train the classifier "
            "again with --labeled and --overwrite."
        )
    if saved.head.in_features != encoder.network.dim:
        raise UserError(
            f"{saved.path} is damaged: its head is for {saved.head.in_features} features, and "
            f"{name} has {encoder.network.dim}. {RESTORE}"
        )
    return encoder._replace(transform=saved.transform)


def predict(
    classifier: ImageClassifier,
    name: str,
    path: Path,
    device: torch.device,
    options: ClassifyOptions,
) -> dict[str, Any]:
    """Write the predictions of a source to a CSV file; return a summary."""
    data = str(options.predict)
    source = open_source(data, split=options.split)
    if not len(source):
        raise UserError(f"{data} has no images.")
    if source.notes:
        open_console(stderr=True).print("\n".join(source.notes))
    source = _cut(source, name, options)
    return write_predictions(classifier, source, path, device, top_k=options.top_k)


def _cut(source: Source, name: str, options: EncoderOptions) -> Source:
    """Cut images into tiles if the run used tiles."""
    where = find_checkpoint(name)
    recipe = None if where is None else load_recipe(where.run, trust=options.trust)
    return cut_like_run(source, recipe)


def _build(
    encoder: EncoderUnderTest, head: torch.nn.Linear, about: Mapping[str, Any]
) -> ImageClassifier:
    assert isinstance(encoder.network, Backbone)  # features of a projector are not an option here
    image_encoder = ImageEncoder(encoder.network, encoder.transform)
    return ImageClassifier(image_encoder, head, about["class_names"], about).eval()


def _load_images(
    sources: LabeledSources, transform: EvalTransform, device: torch.device
) -> LabeledData:
    train = EvalImages(sources.train, transform, device)
    test = None if sources.test is None else EvalImages(sources.test, transform, device)
    return LabeledData(train=train, test=test, transform=transform, device=device, progress=True)


def _check_labels(sources: LabeledSources, options: ClassifyOptions) -> None:
    """Raise a UserError unless each image has one class."""
    given = {"--labeled": sources.train, "--test": sources.test}
    for flag, source in given.items():
        if source is None:
            continue
        if source.multilabels is not None:
            raise UserError(
                f"The images of {source.name} have several classes each, and a classifier gives "
                "each image one. Name a column with one class per image (--label-column), or "
                "measure the encoder on them with `selfsight evaluate --protocol svm`."
            )
        if source.labels is None:
            raise UserError(
                f"{flag} {source.name} has images but no labels. Put each class into its own "
                "sub-folder, named as the class."
            )
    classes = sources.train.class_names
    if len(classes) < 2 and sources.train.labels is not None:
        raise UserError(
            f'All {len(sources.train):,} images of {options.labeled} are of one class, "'
            f'{", ".join(classes)}", and a classifier chooses between two or more. Put each class '
            "into its own sub-folder."
        )


def _kind_of(transform: EvalTransform) -> PixelKind | None:
    """The kind of images that a transform is for; None for photographs."""
    if is_photo(transform.channels, transform.dtype):
        return None
    return PixelKind(
        channels=transform.channels,
        dtype=transform.dtype,
        is_color=False,
        low=transform.low,
        high=transform.high,
        mean=transform.mean,
        std=transform.std,
        has_up=True,
    )
