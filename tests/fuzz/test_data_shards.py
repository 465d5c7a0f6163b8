"""Damaged and hostile tar, COCO and Parquet files: a sentence with the name, or images skipped.

Whatever is decoded must be one of the images that were written: they are PNG files, whose
checksums tell damage.
"""

import contextlib
import hashlib
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from selfsight.cli.main import main
from selfsight.data import Loader, load_images, open_source
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.stream import StreamedImages
from selfsight.errors import RunError, UserError
from selfsight.evals.detection import load_detection_dataset
from tests.data.image_files import png
from tests.fuzz.cases import SEED, assert_none_failed, pick_cases, run_case

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SIDE = 8
IMAGES = [
    np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for i in range(6)
]
FILES = [png(image) for image in IMAGES]
KNOWN = {hashlib.sha256(image.tobytes()).hexdigest() for image in IMAGES}
FULL = {"tar": 420, "coco": 120, "parquet": 500}

NAMES = [
    *("/etc/passwd.jpg", "../../x.png", "a/../../b.jpg", "", "/", ".", "x" * 300 + ".png"),
    *("é😀.jpg", "\udcff\udcfe.png", "a\nb.jpg", "a\tb.png", "0.jpg", "0.seg.png", "[/b].png"),
    *("d/" * 200 + "x.png", ".hidden.png", "CON.jpg", "0", "0.cls", "%s.png", "--5.png"),
]
TEXTS = [
    *(
        b"",
        b"\0",
        b"\xff\xfe",
        b"--5",
        b"9" * 5000,
        b"-1",
        b"1e999",
        b"nan",
        b" \n",
        "é😀".encode(),
    ),
    *(b"[" * 100_000, b'{"label": "\\ud800"}', b'{"label": ' + b"9" * 6000 + b"}", b'{"cls": []}'),
    *(b'{"label": null}', b'{"label": true}', b'{"label": 1e400}', b"{", b"[]", b'"x"'),
    *("é😀".encode(), b"x" * (5 << 20)),
]
SIZES = [0, 1, -1, -512, -(2**40), 2**31, 2**33 - 1, 2**40, 2**62, 2**80, 511, 513]
PAX = [
    *({"size": "-1"}, {"size": "99999999999999999999"}, {"size": "x"}, {"path": ""}),
    *({"path": "../x.png"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    *({"GNU.sparse.map": "a,b"}, {"GNU.sparse.size": "-5"}, {"hdrcharset": "x"}),
    *({"path": "x" * 100_000}, {"size": "1e9"}, {"a" * 5000: "b"}),
]


class Case(NamedTuple):
    kind: str
    number: int

    @property
    def random(self) -> random.Random:
        return random.Random(f"{SEED} {self.kind} {self.number}")


def add_member(tar: tarfile.TarFile, name: str, content: bytes, **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def hostile_header(r: random.Random) -> bytes:
    """A header whose checksum is right, with one field or several that cannot be."""
    info = tarfile.TarInfo("7.png")
    info.size = r.choice(SIZES)
    info.type = r.choice([bytes([r.randrange(256)]), *(bytes([b]) for b in b"01234567LKxgXSDMNV")])
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for _ in range(r.randrange(3)):
        at = r.choice([0, 100, 108, 116, 124, 136, 157, 257, 263, 345, 482, 483])
        header[at : at + 4] = r.randbytes(4)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    return bytes(header) + r.randbytes(r.choice([0, 512, 1024])) + bytes(r.choice([0, 1024]))


def build_tar(r: random.Random) -> bytes:
    out = io.BytesIO()
    form = r.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    with tarfile.open(
        fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for i, file in enumerate(FILES):
            add_member(tar, f"{i}.png", file)
            suffix = r.choice(["cls", "json", "txt"])
            label = str(i % 2).encode()
            add_member(
                tar, f"{i}.{suffix}", b'{"label": %s}' % label if suffix == "json" else label
            )
            match r.choice(["", "", "name", "text", "link", "pax", "twice", "empty"]):
                case "name":
                    add_member(tar, r.choice(NAMES), file)
                case "text":
                    add_member(tar, f"{i}.{r.choice(['cls', 'json', 'txt'])}", r.choice(TEXTS))
                case "link":
                    kind = r.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
                    kind = r.choice([kind, tarfile.CHRTYPE, tarfile.DIRTYPE])
                    add_member(tar, "l.png", b"", type=kind, linkname=r.choice(["l.png", "/x"]))
                case "pax":
                    if form == tarfile.PAX_FORMAT:
                        add_member(tar, "p.png", file, pax_headers=r.choice(PAX))
                case "twice":
                    add_member(tar, f"{i}.png", file)
                case "empty":
                    add_member(tar, "e.png", b"")
    data = out.getvalue()
    if r.random() < 0.4:
        members = len(data.rstrip(b"\0")) // 512 * 512 + 512
        at = r.choice([0, members, r.randrange(0, members, 512)])
        data = data[:at] + hostile_header(r) + data[at:]
    return data if r.random() < 0.4 else damage(data, r)


def build_coco(r: random.Random) -> bytes:
    images = [
        {"id": i, "file_name": f"{i}.png", "height": SIDE, "width": SIDE} for i in range(len(FILES))
    ]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0}
        | {"segmentation": [[1, 1, 5, 1, 5, 5]]}
        for i in range(len(FILES))
    ]
    content: dict[str, Any] = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 1, "name": "a"}],
    }
    odd = [None, -1, 0, 2**70, "x", "", [], {}, [[]], 1e308, True, "../../x.png", [1, 2], [-5] * 4]
    for _ in range(r.randrange(3)):
        part = r.choice(list(content))
        entry = r.choice(content[part] or [{}]) if isinstance(content[part], list) else {}
        if r.random() < 0.2 or not isinstance(entry, dict) or not entry:
            content[part] = r.choice(odd)
        elif r.random() < 0.2:
            entry.pop(r.choice(list(entry)))
        else:
            entry[r.choice(list(entry))] = r.choice(odd)
    text = json.dumps(content).encode()
    text = r.choice([text, text, text, damage(text, r), b"[" * 50_000, b""])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        add_member(tar, "annotations/instances_train.json", text)
        for i, file in enumerate(FILES):
            add_member(tar, f"{r.choice(['train', 'train', '..'])}/{i}.png", file)
    return out.getvalue() if r.random() < 0.5 else damage(out.getvalue(), r)


def build_parquet(r: random.Random) -> bytes:
    count = r.choice([0, 1, 6, 6, 6, 300])
    rows = [FILES[i % len(FILES)] for i in range(count)]
    some = [None if r.random() < 0.2 else row for row in rows]
    structs = [{"bytes": row, "path": f"{i}.png"} for i, row in enumerate(rows)]
    image = r.choice(
        [
            *(pa.array(structs), pa.array(structs), pa.array(rows, pa.binary())),
            pa.array(rows, pa.large_binary()),
            pa.array(some, pa.binary()),
            pa.array([None] * count, pa.binary()),
            pa.array([None] * count, pa.null()),
            pa.array([[row] for row in rows], pa.list_(pa.binary())),
            pa.array([{"bytes": None, "path": None}] * count, structs_type(pa.string())),
            pa.array([None] * count, structs_type(pa.string())),
            pa.array([{"bytes": row, "path": 7} for row in rows], structs_type(pa.int64())),
            pa.array([{"bytes": {"bytes": row}} for row in rows]) if rows else pa.array([], "null"),
            pa.array([str(i) for i in range(count)], pa.string()),
            pa.array(rows, pa.binary()).dictionary_encode(),
            pa.array([b"1234"] * count, pa.binary(4)),
        ]
    )
    label = r.choice(
        [
            pa.array([i % 2 for i in range(count)], pa.int64()),
            pa.array([i % 2 for i in range(count)], pa.int8()),
            pa.array([2_000_000_000] * count, pa.int64()),
            pa.array([2**64 - 1] * count, pa.uint64()),
            pa.array([-(2**63)] * count, pa.int64()),
            pa.array([None if i % 3 else i for i in range(count)], pa.int64()),
            pa.array([float("nan")] * count, pa.float64()),
            pa.array(["ab"[i % 2] for i in range(count)], pa.string()),
            pa.array(["ab"[i % 2] for i in range(count)], pa.string()).dictionary_encode(),
            pa.array(["x" * 50_000] * count, pa.string()),
            pa.array([[0, 1, 1]] * count, pa.list_(pa.int64())),
            pa.array([[2_000_000_000, -7, None]] * count, pa.list_(pa.int64())),
            pa.array([["a", None]] * count, pa.list_(pa.string())),
            pa.array([[[1]]] * count, pa.list_(pa.list_(pa.int64()))),
            pa.array([None] * count, pa.list_(pa.int64())),
            pa.array([True] * count, pa.bool_()),
            pa.array([None] * count, pa.null()),
            pa.array([{"a": 1}] * count, pa.struct([("a", pa.int64())])),
            pa.array([0] * count, pa.timestamp("us")),
            pa.array([1] * count, pa.decimal128(30)),
        ]
    )
    names = r.choice([["image", "label"]] * 6 + [["image", "image"], ["a.b", "label"], ["", "x"]])
    table = pa.table([image, label], names=names)
    feature = r.choice(
        [
            *(
                {"names": ["a", "b"]},
                {"names": {"0": "a", "1": "b"}},
                {"names": 5},
                {"names": [[]]},
            ),
            *({"names": {"x": 1}}, {"names": ["a"]}, {"feature": []}, {"names": ["\ud800", "b"]}),
        ]
    )
    described = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel"} | feature}}})
    metadata = r.choice([None, None, described, "[" * 50_000, "5", '{"info": 3}', "\0"])
    if metadata:
        table = table.replace_schema_metadata({"huggingface": metadata})
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        row_group_size=r.choice([1, 2, 1000]),
        compression=r.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=r.choice([True, False]),
        data_page_version=r.choice(["1.0", "2.0"]),
        store_schema=r.choice([True, False]),
        write_page_checksum=r.choice([True, False]),
    )
    data = out.getvalue()
    choice = r.random()
    if choice < 0.3:
        return data
    if choice < 0.6:  # the footer, which claims counts, types and offsets
        length = int.from_bytes(data[-8:-4], "little")
        start = len(data) - 8 - length
        return data[:start] + flip(data[start:-8], r) + data[-8:]
    if choice < 0.7:  # the length of the footer
        return data[:-8] + r.choice([b"\xff" * 4, b"\0" * 4, r.randbytes(4)]) + data[-4:]
    return damage(data, r)


def structs_type(path: pa.DataType) -> pa.DataType:
    return pa.struct([("bytes", pa.binary()), ("path", path)])


def flip(data: bytes, r: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 5, 20])):
        if changed:
            changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
    return bytes(changed)


def damage(data: bytes, r: random.Random) -> bytes:
    at, length = r.randrange(len(data) + 1), r.choice([1, 4, 100, 512, 4096])
    match r.randrange(8):
        case 0 | 1 | 2:
            return flip(data, r)
        case 3:
            return data[:at]
        case 4:
            return data[:at] + bytes(length) + data[at + length :]
        case 5:
            return data[:at] + r.randbytes(length) + data[at + length :]
        case 6:
            return data[:at] + data[at + length :]
        case _:
            return data[:at] + r.randbytes(length) + data[at:]


BUILD = {"tar": build_tar, "coco": build_coco, "parquet": build_parquet}
CASES = [Case(kind, i) for kind, count in FULL.items() for i in range(count)]


def use_shard(path: Path) -> None:
    """Do what users do with a shard: examine, train, evaluate."""
    with contextlib.suppress(SystemExit):
        main(["doctor", str(path)])
    attempt(path, lambda: check_cached(path, labels=False))
    attempt(path, lambda: check_cached(path, labels=True))
    attempt(path, lambda: read_batch(path))


def use_detection(path: Path) -> None:
    def read_all() -> None:
        objects = load_detection_dataset(path)
        for i in range(len(objects.names)):
            objects.read(i)

    attempt(path, read_all)


def attempt(path: Path, do: Any) -> None:
    """Let errors that users see pass; they must name the file."""
    try:
        do()
    except (UserError, RunError) as error:
        if str(path) not in str(error):
            raise AssertionError("the sentence does not name the file") from error


def check_cached(path: Path, *, labels: bool) -> None:
    source = open_source(path, labels=labels)
    transform = EvalTransform(size=SIDE, resize=SIDE) if labels else None
    store_size = None if labels else SIDE
    images = load_images(source, store_size=store_size, transform=transform, progress=False)
    assert len(images) + len(images.skipped) == len(source)
    if labels:
        values = source.labels if source.multilabels is None else source.multilabels
        assert len(values) == len(source)
        assert int(values.max()) < max(2, len(source.class_names))
    check_pixels(images)


def read_batch(path: Path) -> None:
    source = open_source(path)
    images = StreamedImages(source, store_size=SIDE, channels=3, workers=2)
    batch = len(images) // 2
    if not batch:
        return
    raw = next(iter(Loader(images, batch_size=batch, seed=0).batches(0)))
    assert len(raw.index) == batch


def check_pixels(images: Any) -> None:
    packed, _ = images.pack(torch.arange(len(images)), lambda n: torch.empty(n, dtype=torch.uint8))
    for start, (height, width) in zip(packed.starts, packed.sizes.tolist(), strict=True):
        pixels = packed.flat[int(start) : int(start) + 3 * height * width].view(3, height, width)
        digest = hashlib.sha256(pixels.permute(1, 2, 0).numpy().tobytes()).hexdigest()
        assert digest in KNOWN, "pixels that were never written"


@pytest.fixture
def warm(tmp_path, monkeypatch):
    """Import here what every case would import; users have no type checks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.set_num_threads(1)
    with tarfile.open(tmp_path / "good.tar", "w") as tar:
        for i, file in enumerate(FILES):
            add_member(tar, f"{i}.png", file)
            add_member(tar, f"{i}.cls", b"0")
    pq.write_table(pa.table({"image": FILES, "label": [0, 1] * 3}), tmp_path / "good.parquet")
    for path in (tmp_path / "good.tar", tmp_path / "good.parquet"):
        use_shard(path)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("warm")
def test_no_shard_is_a_traceback_a_hang_or_a_wrong_image(tmp_path, record_property):
    def check(case: Case) -> str | None:
        suffix = "parquet" if case.kind == "parquet" else "tar"
        path = tmp_path / f"{case.kind}-{case.number}.{suffix}"
        path.write_bytes(BUILD[case.kind](case.random))
        use = use_detection if case.kind == "coco" else use_shard
        outcome = run_case(use, path, seconds=60, gigabytes=2)
        path.unlink()
        return outcome.failure and f"{outcome.failure}: {outcome.output[-1200:]}"

    cases = pick_cases(CASES, few=25, full=1000)
    assert_none_failed("malformed tar, COCO and Parquet", cases, check, record_property)
