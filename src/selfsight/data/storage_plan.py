"""How the images of a run are kept and decoded: settled once, by measurement, and recorded."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from selfsight import dist, rng
from selfsight.data.decode import UnreadableError, header, stored_size
from selfsight.data.decode_all import channels_of, key_of, load
from selfsight.data.decoder_trial import Decoder, faster
from selfsight.data.image_store import Images
from selfsight.data.pixel_cache import default_folder, free_disk, free_memory, is_stored
from selfsight.data.source import Source
from selfsight.data.stream import Streamed
from selfsight.errors import UserError, suggest

Keep = Literal["auto", "pixels", "stream"]
KEEP: tuple[Keep, ...] = ("auto", "pixels", "stream")
DECODERS: tuple[Decoder, ...] = ("auto", "cpu", "nvjpeg")
RESIDENT = 0.5  # share of a GPU's free memory that pixels may take for good
SAMPLE = 64  # images looked at and timed
RUNS = 4  # places they are taken from, where neighbors are read together


class Plan(NamedTuple):
    """What was settled, and why."""

    keep: Keep
    decoder: Decoder
    reasons: dict[str, str]


def planned(
    source: Source,
    *,
    keep: Keep = "auto",
    decoder: Decoder = "auto",
    store_size: int,
    channels: int | None = None,
    device: torch.device | str = "cpu",
    cache_dir: str | Path | None = None,
) -> Plan:
    """Replace "auto" by what suits these images and this machine; all processes agree."""
    _refuse_unknown(keep, decoder)
    device = torch.device(device)
    if decoder == "nvjpeg" and device.type != "cuda":
        raise UserError(
            "data.decoder is nvjpeg, which runs on a CUDA device, and this run is on the "
            f"{device.type.upper()}. Use --data.decoder cpu, or auto."
        )
    if "auto" not in (keep, decoder):
        return Plan(keep, decoder, {})
    made = Plan("pixels", "cpu", {})
    if dist.rank() == 0:
        channels = channels_of(source, channels)
        folder = Path(cache_dir) if cache_dir else default_folder()
        made = _chosen(source, keep, decoder, store_size, channels, device, folder)
    told = torch.tensor([KEEP.index(made.keep), DECODERS.index(made.decoder)], device=device)
    first, second = dist.all_sum(told if dist.rank() == 0 else told * 0).tolist()
    return Plan(KEEP[first], DECODERS[second], made.reasons)


def open_images(
    source: Source,
    *,
    keep: str,
    decoder: str,
    store_size: int,
    channels: int | None,
    device: torch.device,
) -> Images:
    """The images as a plan says; kept pixels lie on the device if they fit."""
    if keep == "stream":
        channels = channels_of(source, channels)
        return Streamed(
            source, store_size=store_size, channels=channels, decoder=decoder, device=device
        )
    return resident(load(source, store_size=store_size, channels=channels, decoder=decoder), device)


def resident(images: Images, device: torch.device) -> Images:
    """The images in the device's memory, if that leaves enough of it for training."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    return images.to(device) if images.bytes <= RESIDENT * free else images


def _chosen(
    source: Source,
    keep: Keep,
    decoder: Decoder,
    store_size: int,
    channels: int,
    device: torch.device,
    folder: Path,
) -> Plan:
    if source.stamp is None:  # made on the spot
        return Plan("pixels" if keep == "auto" else keep, "cpu", {})
    for one in DECODERS[1:]:
        key = key_of(source, store_size=store_size, channels=channels, decoder=one)
        if keep != "stream" and decoder in ("auto", one) and key and is_stored(folder, key):
            usable = one == "cpu" or device.type == "cuda"
            if usable:
                return Plan("pixels", one, {"data.keep": "Decoded by an earlier run."})
    files = sample(source)
    reasons = {}
    if keep == "auto":
        total = _stored_bytes(files, store_size, channels) * len(source)
        memory, disk = free_memory() // 2, free_disk(folder)
        keep = "pixels" if total <= max(memory, disk) else "stream"
        where = "memory" if total <= memory else "the cache" if total <= disk else "neither"
        reasons["data.keep"] = f"All decoded take {total / 2**30:.1f} GiB, which fits in {where}."
    if decoder == "auto":
        decoder, why = faster(source, files, keep, store_size, channels, device)
        reasons |= {"data.decoder": why} if why else {}
    return Plan(keep, decoder, reasons)


def sample(source: Source, count: int = SAMPLE) -> list[bytes | np.ndarray]:
    """Some images, still encoded, that can be read; the same ones every time."""
    key, n, found = rng.key(0, "sample"), len(source), []
    places = RUNS if source.read_run else count
    chosen = rng.shuffled(key, n, torch.arange(min(places, n))).sort().values.tolist()
    for first in chosen:
        for i in range(first, min(first + max(1, count // places), n)):
            try:
                found.append(source.read(i))
            except (OSError, ValueError):
                continue
    return found


def _stored_bytes(files: list[bytes | np.ndarray], store_size: int, channels: int) -> int:
    """Mean size of a decoded image."""
    sizes = []
    for file in files:
        try:
            told = header(file)
        except UnreadableError:
            continue
        width, height = stored_size((told.width, told.height), store_size)
        sizes.append(channels * width * height)
    return int(np.mean(sizes)) if sizes else channels * store_size**2


def _refuse_unknown(keep: str, decoder: str) -> None:
    for name, word, known in (("keep", keep, KEEP), ("decoder", decoder, DECODERS)):
        if word not in known:
            raise UserError(
                f'data.{name} is "{word}".{suggest(word, known)} It is one of {", ".join(known)}.'
            )
