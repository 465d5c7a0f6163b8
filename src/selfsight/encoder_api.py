"""Use a trained encoder: load and export it; embed, search, explore and classify images."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from selfsight import dist
from selfsight.check_settings import check_setting
from selfsight.classifiers import classify_images as classifying
from selfsight.classifiers.classifier_file import find_classifier, name_file
from selfsight.classifiers.describe_classifier import (
    describe_predictions,
    print_classifier,
    write_predict_command,
)
from selfsight.classifiers.image_classifier import ImageClassifier
from selfsight.data import Source, open_source
from selfsight.device import resolve_device
from selfsight.encoders.image_encoder import ImageEncoder
from selfsight.encoders.load_encoder import EncoderUnderTest, load_recipe
from selfsight.encoders.load_run_networks import find_checkpoint, load_method
from selfsight.errors import UserError, list_first
from selfsight.exporters.export_encoder import export_encoder
from selfsight.nn import Backbone
from selfsight.options.encoder_options import (
    CLASSIFY_DEFAULTS,
    EMBED_DEFAULTS,
    EXPLORE_DEFAULTS,
    EXPORT_DEFAULTS,
    SEARCH_DEFAULTS,
    ClassifyOptions,
    EmbedOptions,
    ExploreOptions,
    ExportOptions,
    ImageOptions,
    SearchOptions,
)
from selfsight.options.parse_flags import change_options
from selfsight.recipe import eval_transform
from selfsight.run_files.json_files import explain_write_errors, read_object
from selfsight.run_files.run_folder import Run
from selfsight.runs import new_run_folder
from selfsight.terminal.console import build_table, open_console
from selfsight.vectors import embed_images as embedding
from selfsight.vectors import explore_images as exploration
from selfsight.vectors import search_images as searching
from selfsight.vectors.encoder_folders import choose_folder, classifier_folder, open_checkpoint


def load(run: Run | str | Path, *, device: str = "cpu", trust: bool = False) -> ImageEncoder:
    """Load the encoder of a run, in evaluation mode.

    `load(run).encode(["a.jpg", "b.jpg"])` gives a feature for each image, and `load(run).transform`
    prepares an image. The last checkpoint is loaded, or the one that a file names:
    `load("RUN/checkpoints/epoch_10.pt")`. `trust` allows its recipe to run code from outside
    selfsight.

    >>> encoder = selfsight.load(run)
    >>> encoder.encode(["photos/cats/image 000.jpg"]).shape[0]
    1
    """
    check_setting("run", run, Run | str | Path)
    where = open_checkpoint(run)
    recipe = load_recipe(where.run, trust=trust)
    method = load_method(where, recipe, resolve_device(device))
    return ImageEncoder(method.student.backbone, eval_transform(recipe)).eval()


def export(
    run: Run | str | Path | None = None,
    options: ExportOptions = EXPORT_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Write the encoder of a run, or any other, for another library; return a summary.

    Keywords are the options that `selfsight export --help` explains: `export(run, to="timm")`.
    `lines` of the result is the code that loads it. A file of a run's checkpoints can replace the
    run.

    >>> written = selfsight.export(run, to="safetensors", quiet=True)
    """
    options = change_options(options, changes)
    name, classifiers = classifier_folder(run, options)
    classifier, target = None, str(options.to)
    if options.classifier is not None:
        classifier = find_classifier(classifiers, options.classifier)
        target = f"{target}-{classifier.stem}"
    _, folder = choose_folder(run, options, "export", target)
    written = export_encoder(name, Path(options.out or folder), options, classifier)
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
    """Write a vector for each image, with the encoder of a run or any other; return a summary.

    Keywords are the options that `selfsight embed --help` explains: `embed(run, "photos/",
    format="npy")`, or `embed(None, "photos/", backbone="timm:resnet50")`. The same call continues
    where an earlier one was stopped. A file of a run's checkpoints can be given in place of the
    run.

    >>> written = selfsight.embed(run, "photos", device="cpu", quiet=True)
    """
    check_setting("data", data, str | Path)
    options = change_options(options, changes)
    images = _name_images(data, options.split)
    name, folder = choose_folder(run, options, "embeddings", images)
    device = resolve_device(options.device)
    written = embedding.embed(name, str(data), Path(options.out or folder), device, options)
    if not quiet and dist.prints():
        print(embedding.describe(written))
    return written


def search(
    run: Run | str | Path | None,
    data: str | Path,
    queries: str | Path | Sequence[str | Path] = (),
    options: SearchOptions = SEARCH_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Find the images of `data` most similar to query images, its near-duplicates and outliers.

    Keywords are the options that `selfsight search --help` explains: `search(run, "photos/",
    "query.jpg", count=5)`. The images are embedded first, once. Returns `similar` by query,
    `duplicates` (groups of paths, the first of each is the one to keep) and `outliers` (path and
    mean distance to its neighbors).

    >>> found = selfsight.search(run, "photos", ["photos/cats/image 000.jpg"], quiet=True)
    """
    options = change_options(options, changes)
    asked = [queries] if isinstance(queries, str | Path) else list(queries)
    if not (asked or options.duplicates or options.outliers):
        raise UserError("Nothing to search for. Give a query image, --duplicates or --outliers.")
    searching.check_queries(asked)
    source = open_source(str(data), split=options.split)
    if options.keep is not None:
        _check_are_files(run, source, options)
    loaded, source, folder = _embed_first(run, data, source, options)
    if not dist.leads():  # the others have embedded their part
        return {}
    assert isinstance(loaded.network, Backbone)  # features of a projector are not an option here
    encoder = ImageEncoder(loaded.network, loaded.transform)
    device = resolve_device(options.device)
    vectors = searching.read_vectors(Path(folder))
    how: dict[str, Any] = {"index": options.index, "device": device}
    found: dict[str, Any] = {"images": len(vectors.paths), "vectors": folder}
    if asked:
        h = encoder.encode(asked)
        similar = searching.find_similar(vectors, h, count=options.count, **how)
        found["similar"] = dict(zip(map(str, asked), similar, strict=True))
        if loaded.recipe is not None and (tile := loaded.recipe.data.tile) is not None:
            found["note"] = (
                f"The run sees tiles of {tile} px, and a query is resized as a whole. Cut a tile "
                "from it to compare at the same scale."
            )
    dropped: set[int] = set()
    if options.duplicates or options.outliers:
        near = searching.find_neighbors(vectors.h, **how)
    if options.duplicates:
        similarity = options.similarity
        if similarity is None:
            similarity = searching.similarity_of_copies(source, encoder)
        groups = searching.group_duplicates(near, similarity=similarity)
        dropped |= {row for group in groups for row in group[1:]}
        found["similarity"] = similarity
        found["duplicates"] = [[vectors.paths[row] for row in group] for group in groups]
    if options.outliers:
        score = searching.score_outliers(near)
        distance, rows = score.topk(min(options.count, len(score)))
        dropped |= {*rows.tolist()}
        found["outliers"] = [
            {"path": vectors.paths[row], "distance": d}
            for d, row in zip(distance.tolist(), rows.tolist(), strict=True)
        ]
    if options.keep is not None:
        kept = [path for row, path in enumerate(vectors.paths) if row not in dropped]
        found["not_listed"] = searching.write_list(Path(options.keep), source, kept)
        found["kept"] = len(kept) - found["not_listed"]
    if not quiet:
        _print_search(found, options)
    return found


def explore(
    run: Run | str | Path | None,
    data: str | Path,
    options: ExploreOptions = EXPLORE_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Write a page with a map of all images of `data`, to select groups and save them as lists.

    Keywords are the options that `selfsight explore --help` explains: `explore(run, "photos/",
    clusters=20)`. The images are embedded first, once. Returns `page`, the path of the HTML file,
    and what it holds; of several processes the first writes it, and the others return {}.

    >>> written = selfsight.explore(run, "photos", out="map.html", device="cpu", quiet=True)
    """
    check_setting("data", data, str | Path)
    options = change_options(options, changes)
    _, default = choose_folder(run, options, "explore", _name_images(data, options.split))
    page = Path(options.out or f"{default}.html")
    if page.suffix != ".html":
        raise UserError(
            f"--out is {page}, but the page is an HTML file. Give a name like map.html."
        )
    with explain_write_errors(page):  # before minutes of work
        page.parent.mkdir(parents=True, exist_ok=True)
    source = open_source(
        str(data), split=options.split, labels=options.labels, label_column=options.label_column
    )
    loaded, source, folder = _embed_first(run, data, source, options)
    if not dist.leads():  # the others have embedded their part
        return {}
    written = exploration.explore(
        searching.read_vectors(Path(folder)),
        source,
        loaded.transform,
        page,
        title=str(data),
        clusters=options.clusters,
        max_mb=options.max_mb,
        device=resolve_device(options.device),
    )
    if not quiet and dist.prints():
        print(exploration.describe(written))
    return written


def _check_are_files(run: Run | str | Path | None, source: Source, options: SearchOptions) -> None:
    """Raise a UserError if --keep cannot list the images, before they are embedded."""
    if source.local_path is None:
        raise UserError(
            f"--keep needs images that are files on this machine; {source.name} has none."
        )
    name, _ = choose_folder(run, options, "embeddings", "")
    where = find_checkpoint(name)
    tile = None if where is None else load_recipe(where.run, trust=options.trust).data.tile
    if tile is not None:
        raise UserError(
            f"--keep lists files, but {name} sees tiles of {tile} px of them. Leave it out."
        )


def _embed_first(
    run: Run | str | Path | None,
    data: str | Path,
    source: Source,
    options: SearchOptions | ExploreOptions,
) -> tuple[EncoderUnderTest, Source, str]:
    """Embed the images if they are not yet; the encoder, the images it sees, and the vectors."""
    name, folder = choose_folder(run, options, "embeddings", _name_images(data, options.split))
    device = resolve_device(options.device)
    shared = (field.name for field in fields(ImageOptions))
    embed_options = EmbedOptions(**{name: getattr(options, name) for name in shared})
    vectors = Path(options.vectors or folder)
    # Vectors that were embedded with other settings of the files are used as they are.
    about = read_object(vectors / embedding.ABOUT) or {}
    kept = {name: about[name] for name in ("shard_size", "precision") if name in about}
    embed_options = replace(embed_options, **kept)
    settings = {"encoder": name, "data": str(data)} | vars(options)
    with dist.process_group(device.type, settings):
        loaded, source = embedding.load_for_images(name, source, device, options)
        written = embedding.write_vectors(
            loaded, source, vectors, device, embed_options, need_labels=False
        )
    return loaded, source, written["folder"]


def _name_images(data: str | Path, split: str | None = None) -> str:
    """A name for the images, for a folder or file."""
    images = Path(str(data).split(":")[-1]).stem or "images"
    return f"{images}-{split}" if split else images


def _print_search(found: dict[str, Any], options: SearchOptions) -> None:
    console = open_console()
    for query, rows in found.get("similar", {}).items():
        console.print(build_table(rows, title=f"Most similar to {query}"))
    if "note" in found:
        console.print(found["note"])
    if "duplicates" in found:
        groups, at = found["duplicates"], f"similarity from {found['similarity']:.3f}"
        extra = sum(len(group) - 1 for group in groups)
        console.print(f"{extra:,} of {found['images']:,} images repeat another one ({at}).")
        rows = [{"images": len(g), "paths": list_first(g, 4)} for g in groups[: options.count]]
        if rows:
            console.print(build_table(rows, title="Near-duplicates, the largest groups first"))
    if "outliers" in found:
        console.print(build_table(found["outliers"], title="Unlike all others"))
    if "kept" in found:
        console.print(
            f"Wrote {options.keep}: {found['kept']:,} of {found['images']:,} images.", markup=False
        )
        if found["not_listed"]:
            console.print(searching.describe_not_listed(found["not_listed"]))


def classify(
    run: Run | str | Path | None = None,
    options: ClassifyOptions = CLASSIFY_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Train a classifier on labeled images and save it, predict images with it, or both.

    Keywords are the options that `selfsight classify --help` explains: `classify(run,
    labeled="flowers/")`, then `classify(run, predict="new/", out="predictions.csv")`. Returns what
    was measured under `classifier`, and what was written under `predicted`.

    >>> found = selfsight.classify(run, labeled="photos", predict="photos", device="cpu",
    ...     out="predictions.csv", quiet=True)
    >>> found["classifier"]["class_names"]
    ['cats', 'dogs']
    """
    options = change_options(options, changes)
    classifying.check_options(options)
    name, folder = classifier_folder(run, options)
    out = None
    if options.predict is not None:
        images = _name_images(options.predict, options.split)
        _, path = choose_folder(run, options, "predictions", images)
        out = Path(options.out or path.with_name(f"{path.name}.csv"))
        classifying.check_new(out, "predictions", overwrite=options.overwrite)
    device, found = resolve_device(options.device), {}
    if options.labeled is not None:
        kept = str(options.classifier or new_run_folder.file_name(_name_images(options.labeled)))
        path = name_file(folder, kept)
        classifying.check_new(path, "a classifier", overwrite=options.overwrite)
        classifier, notes = classifying.train(name, path, device, options)
        found["classifier"] = {"file": str(path)} | dict(classifier.about)
        if not quiet:
            print_classifier(classifier.about, notes, path, by_class=options.by_class)
            if out is None:
                kept = path.stem if path.parent == folder else str(path)
                print(f"Predict: {write_predict_command(name, options, kept)}")
    else:
        path = find_classifier(folder, options.classifier)
        classifier = classifying.load(name, path, device, options)
    if out is not None:
        found["predicted"] = classifying.predict(classifier, name, out, device, options)
        if not quiet:
            print(describe_predictions(found["predicted"]))
    return found


def load_classifier(
    run: Run | str | Path | None = None,
    classifier: str | Path | None = None,
    *,
    backbone: str | None = None,
    device: str = "cpu",
    trust: bool = False,
) -> ImageClassifier:
    """Load a classifier that `classify` has saved: a module of logits, with its transform.

    `load_classifier(run).classify(["a.jpg", "b.jpg"])` gives label and confidence of each image.
    `classifier` is a name or a file; without it, the run must have a single one.

    >>> classifier = selfsight.load_classifier(run)
    >>> classifier.classify("photos/cats/image 000.jpg").label in classifier.class_names
    True
    """
    options = ClassifyOptions(backbone=backbone, trust=trust)
    name, folder = classifier_folder(run, options)
    path = find_classifier(folder, classifier)
    return classifying.load(name, path, resolve_device(device), options)
