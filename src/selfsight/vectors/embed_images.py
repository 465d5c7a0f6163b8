"""Embed a source: write a vector for every image, in shards that are complete or absent.

A shard is a range of images, encoded in batches that begin with its first image. So its bytes do
not depend on earlier shards, and a job that was killed continues with the missing shards, on any
number of processes.
"""

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.backbones.resnet import ResNet, find_stem
from selfsight.data import Source, StreamedImages, open_source
from selfsight.data.data_fingerprint import fingerprint_data
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.pixel_statistics import find_kind
from selfsight.data.sources.source import clean, digest
from selfsight.encoders.load_encoder import EncoderUnderTest, load_with_options
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.errors import UserError, count_noun, list_first
from selfsight.evals.compiled_backbone import compile_if_it_pays
from selfsight.evals.extract_features import BATCH_SIZE, encode_batches, eval_mode
from selfsight.options.encoder_options import EmbedOptions
from selfsight.options.eval_options import EncoderOptions
from selfsight.recipe import list_differences
from selfsight.run_files.json_files import (
    explain_write_errors,
    read_object,
    replace_file,
    to_json,
    write_json,
)
from selfsight.run_files.run_folder import LOCK, Run
from selfsight.runs.open_run_images import cut_like_run
from selfsight.runs.run_lock import lock_run
from selfsight.terminal.console import is_verbose, open_console
from selfsight.terminal.progress import DelayedProgress

# Parquet readers ignore files that begin with an underscore.
ABOUT = "_about.json"
SKIPPED = "_skipped-{:05d}.json"
SHARD = "shard-{:05d}"
OTHER_FOLDER = "give another folder (--out of embed, --vectors of search and explore)"


class Shard(NamedTuple):
    """The images of one shard that were encoded, and the reasons for those that were not."""

    number: int
    index: Int64[np.ndarray, " n"]  # type: ignore[assignment]
    vectors: Float[np.ndarray, "n d"]
    skipped: list[tuple[str, str]]


class EncodedPart(NamedTuple):
    """Requested images, encoded images, and why the others were not encoded."""

    asked: Int64[Tensor, " _"]
    index: Int64[Tensor, " n"]  # type: ignore[assignment]
    h: Float[Tensor, "n d"]
    unreadable: dict[int, str]


def embed(
    name: str, data: str, folder: Path, device: torch.device, options: EmbedOptions
) -> dict[str, Any]:
    """Write a vector for each image of `data` with the encoder `name`; return a summary."""
    settings = {"command": "embed", "encoder": name, "data": data} | vars(options)
    with dist.process_group(device.type, settings):
        source = open_source(
            data, split=options.split, labels=options.labels, label_column=options.label_column
        )
        encoder, source = load_for_images(name, source, device, options)
        return write_vectors(encoder, source, folder, device, options)


def write_vectors(
    encoder: EncoderUnderTest,
    source: Source,
    folder: Path,
    device: torch.device,
    options: EmbedOptions,
    *,
    need_labels: bool = True,
) -> dict[str, Any]:
    """Write a vector for each image with a loaded encoder; return a summary.

    Shards of an earlier call are kept. Each of several processes writes its share. If labels are
    not needed, complete shards are kept with labels or without.
    """
    console = open_console(stderr=True, quiet=not dist.prints())
    if source.notes:
        console.print("\n".join(source.notes))
    with lock_run(Run(folder)):
        about = dist.on_first(lambda: _describe(source, encoder, options))
        missing = dist.on_first(lambda: _begin(folder, about, options, need_labels))
        began, own = time.monotonic(), missing[dist.rank() :: dist.world_size()]
        skipped = _embed_shards(source, encoder, device, folder, own, options)
        skipped = [pair for part in dist.gather_objects(skipped) for pair in part]
        seconds = time.monotonic() - began
    count = sum(min(options.shard_size, len(source) - k * options.shard_size) for k in missing)
    if skipped:
        shown = list_first(
            [f"{name} ({why})" for name, why in skipped], len(skipped) if is_verbose() else 3
        )
        console.print(
            f"Left out {count_noun(len(skipped), 'unreadable image')}: {shown}", soft_wrap=True
        )
    return {
        "folder": str(folder),
        "images": len(source),
        "encoded": count - len(skipped),
        "skipped": len(skipped),
        "dim": about["dim"],
        "shards": _count_shards(len(source), options),
        "shards_written": len(missing),
        "format": options.format,
        "images_per_second": count / seconds if count else None,
    }


def load_for_images(
    name: str, source: Source, device: torch.device, options: EncoderOptions
) -> tuple[EncoderUnderTest, Source]:
    """Load an encoder, adapted to these images if it is not a run's; tile them as in its run."""
    if not len(source):
        raise UserError(f"{source.name} has no images.")
    kind = None if find_checkpoint(name) is not None else find_kind(source)
    encoder = load_with_options(name, device, options, kind)
    return encoder, cut_like_run(source, encoder.recipe)


def describe(written: dict[str, Any]) -> str:
    """Describe in a sentence or two what was written and how to read it."""
    folder, ending = written["folder"], written["format"]
    speed = written["images_per_second"]
    if speed is None:
        return f"{folder} has all shards of these {written['images']:,} images already."
    read = f'pyarrow.parquet.read_table("{folder}")'
    if ending == "npy":
        read = f'np.concatenate([np.load(f) for f in sorted(glob("{folder}/shard-*.npy"))])'
    return (
        f"Wrote {written['encoded']:,} vectors of {written['dim']} numbers to {folder}: "
        f"{written['shards_written']} of {written['shards']} shards, {speed:,.0f} images/s.\n"
        f"Read them: {read}"
    )


def _embed_shards(
    source: Source,
    encoder: EncoderUnderTest,
    device: torch.device,
    folder: Path,
    shards: Sequence[int],
    options: EmbedOptions,
) -> list[tuple[str, str]]:
    """Encode and write these shards; return the unreadable images and the reasons."""
    if not shards:
        return []
    skipped: list[tuple[str, str]] = []
    total = sum(len(_range(number, source, options)) for number in shards)
    with ThreadPoolExecutor(1) as writer, DelayedProgress("embedding", total, unit="images") as bar:
        writing: Future[None] | None = None
        for shard in _encode_shards(source, encoder, device, shards, options, bar):
            skipped += shard.skipped
            if writing is not None:
                writing.result()
            writing = writer.submit(_write, shard, source, folder, options)
        if writing is not None:
            writing.result()
    return skipped


def _encode_shards(
    source: Source,
    encoder: EncoderUnderTest,
    device: torch.device,
    shards: Sequence[int],
    options: EmbedOptions,
    bar: DelayedProgress,
) -> Iterator[Shard]:
    """Encode the shards one after the other; the next is decoded while one is encoded."""
    parts = (
        part
        for number in shards
        for part in torch.tensor(_range(number, source, options)).split(BATCH_SIZE)
    )
    network: nn.Module = encoder.network
    autocast = None
    if options.precision == "bf16":
        autocast = torch.bfloat16
        # By all images, not by the missing ones: the bytes of a shard must not depend on the others
        # that were written before, or on the number of processes.
        network = compile_if_it_pays(
            network,
            BATCH_SIZE,
            device=device,
            num_images=len(source),
            image_size=encoder.transform.size,
        )
    encoded = encode_source(network, encoder.transform, source, device, parts, autocast=autocast)
    for number in shards:
        count = -(-len(_range(number, source, options)) // BATCH_SIZE)
        found = []
        for part in itertools.islice(encoded, count):
            found.append(part)
            bar.advance(len(part.asked))
        skipped = [(source.names[i], why) for part in found for i, why in part.unreadable.items()]
        index = torch.cat([part.index for part in found]).numpy()
        yield Shard(number, index, torch.cat([part.h for part in found]).cpu().numpy(), skipped)


def encode_source(
    network: nn.Module,
    transform: EvalTransform,
    source: Source,
    device: torch.device,
    parts: Iterable[Int64[Tensor, " _"]],
    *,
    autocast: torch.dtype | None = None,
) -> Iterator[EncodedPart]:
    """Encode images of a source batch by batch; the next ones are decoded meanwhile."""
    images = StreamedImages(source, transform=transform, channels=transform.channels)
    asked: deque[Int64[Tensor, " _"]] = deque()

    def read_parts() -> Iterator[Int64[Tensor, " _"]]:
        for part in parts:
            asked.append(part)
            yield part

    try:
        with eval_mode(network):
            encoded = encode_batches(
                network,
                images,
                transform,
                read_parts(),
                are_crops=True,
                device=device,
                autocast=autocast,
            )
            for numbers, h in encoded:
                part = asked.popleft()
                if not images.skipped:  # reading the numbers would wait for the device
                    yield EncodedPart(part, part, h, {})
                    continue
                kept = numbers.cpu() == part  # an unreadable image was replaced by another one
                why = dict(images.skipped)
                lost = {i: why.get(source.names[i], "unreadable") for i in part[~kept].tolist()}
                yield EncodedPart(part, part[kept], h[kept.to(h.device)], lost)
    finally:
        images.close()


def _write(shard: Shard, source: Source, folder: Path, options: EmbedOptions) -> None:
    """Write the files of a shard; the file of vectors comes last and marks it as complete."""
    names = [clean(source.names[int(i)]) for i in shard.index]  # Parquet holds only UTF-8
    labels = [_label(source, int(i)) for i in shard.index]
    path = folder / SHARD.format(shard.number)
    with explain_write_errors(path):
        if shard.skipped:
            skipped = {clean(name): why for name, why in shard.skipped}
            write_json(folder / SKIPPED.format(shard.number), skipped)
        if options.format == "npy":
            write_json(path.with_suffix(".json"), {"path": names, "label": labels})
            with replace_file(path.with_suffix(".npy")) as file:
                np.save(file, shard.vectors)
            return
        several = source.multilabels is not None
        flat = pa.array(shard.vectors.reshape(-1))
        table = pa.table(
            {
                "path": pa.array(names, pa.string()),
                "label": pa.array(labels, pa.list_(pa.string()) if several else pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(flat, shard.vectors.shape[1]),
            }
        )
        with replace_file(path.with_suffix(".parquet")) as file:
            pq.write_table(
                table,
                file,
                compression="none",
                use_dictionary=["label"],
                write_page_checksum=True,
            )


def _label(source: Source, i: int) -> str | list[str] | None:
    """Name of the class of an image, or of its classes; None if there is none."""
    if source.multilabels is not None:
        present = np.flatnonzero(source.multilabels[i] == 1)
        return [clean(source.class_names[k]) for k in present]
    if source.labels is None or source.labels[i] < 0:
        return None
    return clean(source.class_names[source.labels[i]])


def _describe(source: Source, encoder: EncoderUnderTest, options: EmbedOptions) -> dict[str, Any]:
    """Everything that decides the bytes: network, weights, transform, images, shard size."""
    return to_json(
        {
            "weights": hash_weights(encoder.network),
            # Networks of other strides have the same weights.
            "stem": find_stem(encoder.network) if isinstance(encoder.network, ResNet) else None,
            "dim": encoder.network.dim,
            "transform": encoder.transform.settings(),
            "data": fingerprint_data(source),
            "labels": _hash_labels(source),
            "format": options.format,
            "shard_size": options.shard_size,
            "precision": options.precision,
        }
    )


def _begin(
    folder: Path, about: dict[str, Any], options: EmbedOptions, need_labels: bool
) -> list[int]:
    """Write the description of the folder, or compare it; return the missing shards."""
    entries = [path for path in folder.iterdir() if path.name != LOCK]
    saved = read_object(folder / ABOUT)
    if entries and saved is None:
        raise UserError(f"{folder} holds other files; {OTHER_FOLDER}.")
    ending, count = f".{options.format}", _count_shards(about["data"]["images"], options)
    missing = [k for k in range(count) if not (folder / f"{SHARD.format(k)}{ending}").exists()]
    if saved is not None and not (need_labels or missing):
        about = about | {"labels": saved.get("labels")}
    differences = [] if saved is None else list_differences(about, saved)
    if differences and not options.overwrite:
        texts = [f"{name} is {now} now and was {before}" for name, now, before in differences]
        raise UserError(
            f"{folder} holds other vectors: {list_first(texts, 3, '; ')}. Replace them "
            f"with `selfsight embed ... --overwrite`, or {OTHER_FOLDER}."
        )
    with explain_write_errors(folder):
        if options.overwrite:
            for path in (*folder.glob("shard-*"), *folder.glob("_*.json")):
                path.unlink()
            missing = [*range(count)]
        write_json(folder / ABOUT, about)
    return missing


def _hash_labels(source: Source) -> str | None:
    """Hash the classes and the labels of all images; None without labels."""
    labels = source.multilabels if source.labels is None else source.labels
    if labels is None:
        return None
    return digest([*source.class_names, hashlib.sha256(labels.tobytes()).hexdigest()])


def hash_weights(network: nn.Module) -> str:
    """Hash the names and values of all weights."""
    total = hashlib.sha256()
    for name, value in network.state_dict().items():
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _range(number: int, source: Source, options: EmbedOptions) -> range:
    """The images of a shard."""
    first = number * options.shard_size
    return range(first, min(first + options.shard_size, len(source)))


def _count_shards(count: int, options: EmbedOptions) -> int:
    return -(-count // options.shard_size)
