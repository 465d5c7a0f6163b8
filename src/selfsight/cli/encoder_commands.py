"""The commands that use a trained encoder: export, embed, search, explore, classify, adapt."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from selfsight.errors import UserError
from selfsight.options.encoder_options import (
    ADAPT_DEFAULTS,
    CLASSIFY_DEFAULTS,
    EMBED_DEFAULTS,
    EXPLORE_DEFAULTS,
    EXPORT_DEFAULTS,
    SEARCH_DEFAULTS,
    AdaptOptions,
    ClassifyOptions,
    EmbedOptions,
    ExploreOptions,
    ExportOptions,
    SearchOptions,
)
from selfsight.options.option_types_and_ranges import INLINE


def export(
    run: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None,
    /,
    *,
    options: Annotated[ExportOptions, INLINE] = EXPORT_DEFAULTS,
    json: bool = False,
) -> Any:
    """Write the encoder of a run, or any other, for another library; print the code that loads it.

    The folder has the weights, the values of the transform, and a model card.

    Args:
        run: Run folder, or a file in its checkpoints.
        json: Print JSON instead of text.
    """
    from selfsight import encoder_api

    return encoder_api.export(run, options, quiet=json)


def embed(
    words: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="RUN DATA", help_behavior_hint="")
    ] = (),
    /,
    *,
    options: Annotated[EmbedOptions, INLINE] = EMBED_DEFAULTS,
    json: bool = False,
) -> Any:
    """Write a vector for each image, with the encoder of a run or any other (--backbone).

    Repeat the command to continue a job that was stopped. With torchrun, each process writes its
    share of the shards.

    Args:
        words: Run folder, or a file in its checkpoints, and images as for pretrain. With
            --backbone only the images.
        json: Print a summary as JSON instead of text.
    """
    from selfsight import encoder_api

    run, data = _split_run_and_data(words, "embed", options.backbone)
    return encoder_api.embed(run, data, options, quiet=json)


def search(
    words: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="RUN DATA QUERY...", help_behavior_hint="")
    ] = (),
    /,
    *,
    options: Annotated[SearchOptions, INLINE] = SEARCH_DEFAULTS,
    json: bool = False,
) -> Any:
    """Find the images most similar to a query, near-duplicates, and outliers.

    The images are embedded first, once, as by `selfsight embed`.

    Args:
        words: Run folder, or a file in its checkpoints; images as for pretrain; and query images.
            With --backbone, only the images and the queries.
        json: Print JSON instead of tables.
    """
    from selfsight import encoder_api

    first = 0 if options.backbone is not None else 1
    if len(words) <= first:
        raise UserError(
            "Give RUN and DATA: `selfsight search RUN DATA query.jpg`, or `selfsight search DATA "
            "query.jpg --backbone NAME`."
        )
    run = words[0] if first else None
    return encoder_api.search(run, words[first], words[first + 1 :], options, quiet=json)


def explore(
    words: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="RUN DATA", help_behavior_hint="")
    ] = (),
    /,
    *,
    options: Annotated[ExploreOptions, INLINE] = EXPLORE_DEFAULTS,
    json: bool = False,
) -> Any:
    """Write a page with a map of all images, where groups can be selected and saved as lists.

    The page is one file that a browser opens from disk. The images are embedded first, once, as by
    `selfsight embed`.

    Args:
        words: Run folder, or a file in its checkpoints, and images as for pretrain. With
            --backbone only the images.
        json: Print a summary as JSON instead of text.
    """
    from selfsight import encoder_api

    run, data = _split_run_and_data(words, "explore", options.backbone)
    return encoder_api.explore(run, data, options, quiet=json)


def classify(
    run: Annotated[Path | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None,
    /,
    *,
    options: Annotated[ClassifyOptions, INLINE] = CLASSIFY_DEFAULTS,
    json: bool = False,
) -> Any:
    """Train a classifier on labeled images and save it; predict other images to a CSV file.

    The classifier is a linear head on the encoder's features, or the whole network (--fine-tune),
    measured on held-out images. `selfsight export --classifier NAME` exports it.

    Args:
        run: Run folder, or a file in its checkpoints. Not with --backbone.
        json: Print JSON instead of text.
    """
    from selfsight import encoder_api

    return encoder_api.classify(run, options, quiet=json)


def adapt(
    data: Annotated[str, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    options: Annotated[AdaptOptions, INLINE] = ADAPT_DEFAULTS,
    json: bool = False,
) -> Any:
    """Decide whether to use an encoder unchanged, continue its pretraining, or train from scratch.

    Tries all three within a time limit, measures each with intervals, and answers in a sentence.
    A trained encoder that is measurably worse than the initial one is not kept. Settings of the
    recipe have flags as in pretrain: --start.freeze 2.

    Args:
        data: Images, as for pretrain; no labels are read.
        json: Print JSON instead of text.
    """
    from selfsight.adaptation import try_arms

    return try_arms.adapt(data, options, quiet=json)


def _split_run_and_data(
    words: tuple[str, ...], command: str, backbone: str | None
) -> tuple[str | None, str]:
    """The run, None if there is a backbone, and the data."""
    expected = ("DATA",) if backbone is not None else ("RUN", "DATA")
    if len(words) != len(expected):
        raise UserError(
            f"Give {' and '.join(expected)}: `selfsight {command} RUN DATA`, or `selfsight "
            f"{command} DATA --backbone NAME`."
        )
    return None if len(words) == 1 else words[0], words[-1]
