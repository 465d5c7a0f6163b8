"""Search a source by the vectors of its images: similar images, near-duplicates, outliers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight.data import Source
from selfsight.data.decoders.decode_image import decode, describe_error, read_header
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources.source import clean
from selfsight.encoders.image_encoder import ImageEncoder
from selfsight.errors import UserError
from selfsight.evals.feature_statistics import unit
from selfsight.evals.knn import neighbors_in_blocks
from selfsight.run_files.json_files import explain_write_errors
from selfsight.terminal.progress import DelayedProgress

CPU = torch.device("cpu")
LINKS = 20  # nearest neighbors by which near-duplicates are grouped
OUTLIER_NEIGHBORS = 10  # whose mean distance is the score of an outlier
COPIES = 64  # images whose changed copies set the similarity of near-duplicates
CUT = 0.03  # of each side, in a changed copy
FOUND = 0.9  # share of the changed copies that the similarity finds


class Vectors(NamedTuple):
    """Paths of images, and their unit vectors."""

    paths: list[str]
    h: Float[Tensor, "n d"]


class Neighbors(NamedTuple):
    """Similarities and row numbers of the nearest images of each image, nearest first."""

    similarity: Float[Tensor, "n k"]
    rows: Int64[Tensor, "n k"]


def read_vectors(folder: Path) -> Vectors:
    """Read the Parquet shards that `embed` has written, in the order of the images."""
    paths: list[str] = []
    parts: list[Tensor] = []
    files = sorted(folder.glob("shard-*.parquet"))
    with DelayedProgress("reading vectors", len(files), unit="shards") as bar:
        for file in files:
            found = _read_shard(file)
            paths += found.paths
            parts.append(found.h)
            bar.advance()
    return Vectors(paths, torch.cat(parts))


def _read_shard(file: Path) -> Vectors:
    """Read a shard and compare its checksums; raise a UserError if it is damaged."""
    try:
        table = pq.read_table(file, columns=["path", "vector"], page_checksum_verification=True)
        paths, column = table["path"].to_pylist(), table["vector"].combine_chunks()
        flat = column.flatten().to_numpy()
        h = torch.from_numpy(flat.reshape(len(paths), column.type.list_size).copy())
    except (pa.ArrowException, OSError, KeyError, ValueError, AttributeError) as error:
        why = str(error).strip().split("\n")[0]
        raise UserError(
            f"{file} is damaged, or is no shard of vectors: {why}. Delete it, and the same command "
            "writes it again."
        ) from error
    return Vectors(paths, unit(h))


def check_queries(files: Sequence[str | Path]) -> None:
    """Raise a UserError for a query that is no image, before many others are embedded."""
    for file in files:
        try:
            read_header(Path(file).expanduser().read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {describe_error(error)}.") from error


def find_similar(
    vectors: Vectors,
    queries: Float[Tensor, "m d"],
    *,
    count: int,
    index: str = "exact",
    device: torch.device = CPU,
) -> list[list[dict[str, Any]]]:
    """The images most similar to each query: path and cosine similarity, the best first."""
    count = min(count, len(vectors.h))
    queries = unit(queries.float().cpu())
    found = _find_neighbors(vectors.h, queries, count, index, device, among=False)
    return [
        [
            {"path": vectors.paths[row], "similarity": value}
            for value, row in zip(values.tolist(), rows.tolist(), strict=True)
        ]
        for values, rows in zip(found.similarity, found.rows, strict=True)
    ]


def find_neighbors(
    h: Float[Tensor, "n d"], *, index: str = "exact", device: torch.device = CPU
) -> Neighbors:
    """The nearest other images of every image."""
    if len(h) < 2:
        raise UserError("There is only one image; near-duplicates and outliers need more.")
    return _find_neighbors(h, h, min(LINKS, len(h) - 1), index, device, among=True)


def group_duplicates(near: Neighbors, *, similarity: float) -> list[list[int]]:
    """Groups of images that are linked by neighbors of at least this similarity.

    The largest come first, and of equal ones that with the most similar pair.
    """
    # Imported here: every command imports this file.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first, column = (near.similarity >= similarity).nonzero(as_tuple=True)
    second = near.rows[first, column]
    n = len(near.rows)
    links = coo_array((np.ones(len(first)), (first.numpy(), second.numpy())), shape=(n, n))
    _, group = connected_components(links, directed=False)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    nearest = near.similarity[:, 0]
    groups = [part.tolist() for part in parts if len(part) > 1]
    return sorted(groups, key=lambda group: (-len(group), -nearest[group].max().item(), group[0]))


def score_outliers(near: Neighbors) -> Float[Tensor, " n"]:
    """Mean cosine distance to the nearest images: large for an image unlike all others."""
    return 1 - near.similarity[:, :OUTLIER_NEIGHBORS].mean(dim=1)


def similarity_of_copies(source: Source, encoder: ImageEncoder) -> float:
    """The similarity that nine of ten slightly cropped copies have to their originals.

    A copy is cropped by three percent on each side. How similar copies are depends on the encoder,
    so this is measured with the encoder and these images.
    """
    channels, dtype = encoder.transform.channels, encoder.transform.dtype
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for i in np.linspace(0, len(source) - 1, min(COPIES, len(source))).astype(int).tolist():
        try:
            pixels = decode(source.read(i), store_size=None, channels=channels, dtype=dtype)
        except (OSError, UnreadableError):
            continue  # it has no vector either
        dy, dx = (max(1, round(CUT * side)) for side in pixels.shape[:2])
        if min(pixels.shape[0] - 2 * dy, pixels.shape[1] - 2 * dx) > 0:
            pairs.append((pixels, pixels[dy:-dy, dx:-dx]))
    if not pairs:
        raise UserError("No image can be cropped to make a copy. Set --similarity, such as 0.95.")
    originals, copies = (
        unit(encoder.encode(list(part)).float()) for part in zip(*pairs, strict=True)
    )
    return torch.quantile((originals * copies).sum(dim=1), 1 - FOUND).item()


def _find_neighbors(
    bank: Tensor, queries: Tensor, k: int, index: str, device: torch.device, *, among: bool
) -> Neighbors:
    """The k nearest rows; with `among`, the queries are the bank; no row is its own neighbor."""
    if index == "faiss":
        return _find_with_faiss(bank, queries, k, among=among)
    values, rows = neighbors_in_blocks(
        bank, queries, k=k, leave_one_out=among, progress="comparing", device=device
    )
    return Neighbors(values.cpu(), rows.cpu())


def _find_with_faiss(bank: Tensor, queries: Tensor, k: int, *, among: bool) -> Neighbors:
    """The k nearest rows within the searched cells, which may miss some."""
    try:
        import faiss
    except ImportError:
        raise UserError(
            "--index faiss needs a package: pip install faiss-cpu. Without it the search is exact, "
            "which takes longer past a million images."
        ) from None
    cells = max(1, min(65536, round(4 * len(bank) ** 0.5), len(bank) // 39))
    found: Any = faiss.index_factory(bank.shape[1], f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
    found.nprobe = min(cells, 32)
    rows = bank.numpy()
    found.train(rows)
    found.add(rows)
    values, near = map(torch.from_numpy, found.search(queries.numpy(), k + among))
    if among:
        # The image itself moves to the end; ties may have put another one first.
        own = near == torch.arange(len(near))[:, None]
        order = own.to(torch.uint8).sort(dim=1, stable=True).indices[:, :k]
        values, near = values.gather(1, order), near.gather(1, order)
    return Neighbors(values.where(near >= 0, -1.0), near.clamp(min=0))


def fits_list(path: str) -> bool:
    """Whether a list, of one path in UTF-8 per line and a label after a tab, can hold a path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return not {"\t", "\n", "\r"} & {*path}


def describe_not_listed(count: int) -> str:
    """Say how many files a list could not hold, and why."""
    return (
        f"{count:,} files cannot be in a list: their names have a tab or a new line, or are not "
        "UTF-8."
    )


def write_list(path: Path, source: Source, kept: Sequence[str]) -> int:
    """Write a list of images that `pretrain` reads; return how many cannot be in it."""
    assert source.local_path is not None  # they are files
    number = {clean(name): i for i, name in enumerate(source.names)}
    paths = [str(Path(source.local_path(number[name])).absolute()) for name in kept]
    listed = [path for path in paths if fits_list(path)]
    with explain_write_errors(path):
        path.write_text("".join(f"{name}\n" for name in listed), encoding="utf-8")
    return len(paths) - len(listed)
