"""Files of strangers run no code, and reach no other file and no network."""

import hashlib
import io
import itertools
import json
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
import torchvision

from selfsight.backbones.foreign_checkpoints.load_backbone import load_backbone
from selfsight.data import dataset_index, load_images, open_source
from selfsight.data.cache_files import INDEX_SUFFIX, cache_folder
from selfsight.data.pixel_cache import DamagedCacheError, load_entry
from selfsight.errors import UserError
from selfsight.evals.detection import load_detection_dataset
from selfsight.run_files.run_folder import Run
from tests.data.image_files import pixels, png
from tests.security.hostile import CONTENTS, WRITERS, Payload


@pytest.fixture
def mark(tmp_path):
    """Where a payload leaves its mark; the test fails if it is there at the end."""
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists()


def test_a_payload_leaves_its_mark_where_it_is_read_carelessly(tmp_path):
    for i, write in enumerate(WRITERS.values()):
        write(tmp_path / "file", Payload(tmp_path / f"mark{i}"))
        if i < 2:
            torch.load(tmp_path / "file", weights_only=False)
        elif i == 2:
            pickle.loads((tmp_path / "file").read_bytes())
        elif i == 3:
            np.load(tmp_path / "file", allow_pickle=True)
        assert (tmp_path / f"mark{i}").exists() is (i < 4)


NAMES = ("w.pth", "w.safetensors", "resnet18=w.bin", "timm:resnet10t=w.pt", "torchvision:vgg11=w")


@pytest.mark.filterwarnings("ignore:.*looks like a TorchScript archive")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_weights_runs_no_code(writer, mark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, name in itertools.product(CONTENTS, NAMES):
        WRITERS[writer](tmp_path / name.rpartition("=")[2], CONTENTS[content](mark))
        with pytest.raises(UserError, match=r"--trust|cannot be read"):
            load_backbone(name)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_file_in_the_caches_of_timm_and_torchvision_runs_no_code(
    writer, mark, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    file = tmp_path / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir()
    WRITERS[writer](file, Payload(mark))
    with pytest.raises(UserError, match="holds more than weights"):
        load_backbone("torchvision:resnet18")

    def cached(*_, filename, **__):
        if filename.endswith("safetensors"):
            raise timm.models._hub.EntryNotFoundError("none")
        return file

    monkeypatch.setattr("selfsight.backbones.from_timm.check_published", lambda name: None)
    monkeypatch.setattr(timm.models._hub, "hf_hub_download", cached)
    with pytest.raises(UserError, match="resnet10t"):
        load_backbone("timm:resnet10t")


def test_results_and_cached_pixels_run_no_code(mark, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    payload = np.array([Payload(mark)], dtype=object)
    run = Run(tmp_path / "run")
    run.results.mkdir(parents=True)
    np.savez(run.results / "knn.npz", predicted=payload)
    with pytest.raises(ValueError, match="allow_pickle"):
        run.arrays("knn")
    cache_folder().mkdir(parents=True)
    (cache_folder() / "key.pixels").touch()
    index = io.BytesIO()
    np.savez(index, heights=payload, widths=payload, readable=payload)
    sealed = index.getvalue() + hashlib.sha256(index.getvalue()).digest()
    (cache_folder() / f"key{INDEX_SUFFIX}").write_bytes(sealed)
    with pytest.raises(DamagedCacheError, match="allow_pickle"):
        load_entry(cache_folder(), "key")


def test_data_sets_of_torchvision_run_no_code(mark, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, _ in torchvision.datasets.CIFAR10.train_list + torchvision.datasets.CIFAR10.test_list:
        WRITERS["pickle"](folder / name, Payload(mark))
    WRITERS["pickle"](folder / "batches.meta", Payload(mark))
    WRITERS["pickle"](tmp_path / "meta.bin", (Payload(mark), []))
    for name, sentence in {
        "CIFAR10": "is not in",  # torchvision compares checksums first
        "ImageNet": "cannot be opened|is not in",
        "LSUN": "could run code",
    }.items():
        with pytest.raises((UserError, pickle.UnpicklingError), match=rf"{sentence}|weights_only"):
            open_source(f"torchvision:{name}@{tmp_path}")


@pytest.mark.parametrize("name", ["SBU", "SEMEION", "CIFAR10", "STL10", "SVHN"])
def test_data_sets_of_torchvision_are_not_downloaded(name, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a download")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(UserError, match=r"does not download it|cannot be opened"):
        open_source(f"torchvision:{name}@{tmp_path}")


OUTSIDE = ("../secret.png", "x/../../secret.png", "{}/secret.png")


@pytest.mark.parametrize("name", OUTSIDE)
def test_annotations_name_no_file_outside_of_their_folder(name, tmp_path):
    (tmp_path / "secret.png").write_bytes(png(pixels(8, 8)))
    folder = tmp_path / "set/annotations"
    folder.mkdir(parents=True)
    image = {"id": 1, "file_name": name.format(tmp_path), "height": 8, "width": 8}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16}
    content = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "a"}]}
    (folder / "instances_train.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"1 of 1 images .* are missing"):
        load_detection_dataset(tmp_path / "set", "train")
    voc = tmp_path / "voc"
    (voc / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "secret.xml").write_text("<a/>")
    stem = name.format(tmp_path).removesuffix(".png")
    (voc / "ImageSets/Main/train.txt").write_text(f"../{stem}")
    with pytest.raises(UserError, match=r"1 of 1 files .* are missing"):
        load_detection_dataset(voc, "train")


def test_members_of_a_tar_are_read_within_it(tmp_path, monkeypatch):
    """Names that leave the folder are names, and links are no images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "secret.png").write_bytes(png(pixels(9, 9)))
    before = set(tmp_path.rglob("*"))
    names = [f"../{i}.png" for i in range(2)] + [str(tmp_path / "3.png")]
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for name in names:
            info, content = tarfile.TarInfo(name), png(pixels(8, 8))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("link.png")
            link.type, link.linkname = kind, str(tmp_path / "secret.png")
            tar.addfile(link)
    source = open_source(tmp_path / "set.tar")
    assert list(source.names) == names
    assert load_images(source, store_size=8, progress=False).heights.tolist() == [8, 8, 8]
    new = {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before}
    assert new == {"set.tar", "cache"}


def test_a_path_in_parquet_is_a_name_and_never_opened(tmp_path):
    (tmp_path / "secret.png").write_bytes(png(pixels(9, 9)))
    secret = {"bytes": None, "path": str(tmp_path / "secret.png")}
    rows = [secret, {"bytes": png(pixels(8, 8)), "path": "a"}]
    pq.write_table(pa.table({"image": rows}), tmp_path / "set.parquet")
    images = load_images(open_source(tmp_path / "set.parquet"), store_size=8, progress=False)
    assert images.heights.tolist() == [8]
    assert [name for name, _ in images.skipped] == [str(tmp_path / "secret.png")]


def test_entities_of_an_xml_file_do_not_grow(tmp_path):
    """A few lines that would expand to 3 GB."""
    for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_text("a")
    (tmp_path / "JPEGImages/a.jpg").touch()
    entities = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))
    text = f'<!DOCTYPE a [<!ENTITY e0 "lol">{entities}]><annotation>&e9;</annotation>'
    (tmp_path / "Annotations/a.xml").write_text(text)
    with pytest.raises(UserError, match=r"not in VOC's format .*amplification"):
        load_detection_dataset(tmp_path, "train")


@pytest.mark.slow
def test_a_worker_imports_nothing_from_the_current_folder(mark, tmp_path, monkeypatch):
    """A data set may hold a file torch.py."""
    from selfsight.data.decoders import decode_workers

    for name in ("torch", "numpy", "selfsight", "PIL"):
        (tmp_path / f"{name}.py").write_text(f"import os; os.mkdir({str(mark)!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    processes = decode_workers.DecodeProcesses(1)
    try:
        assert processes.wait(60.0)
    finally:
        processes.close()


NO_NETWORK = """
import sys
SEEN = []
def hook(event, args):
    network = event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request")
    # a connection to a file of this machine is no network
    network |= event == "socket.connect" and isinstance(args[1], tuple)
    if network or event in ("pickle.find_class", "os.system"):
        SEEN.append((event, str(args[1:])))
sys.addaudithook(hook)
from selfsight.cli.main import main
data, out = sys.argv[1:]
small = ("--device", "cpu")
main(["doctor", data, *small])
main(["pretrain", data, *small, "--epochs", "1", "--batch-size", "8", "--out", out])
main(["resume", out, *small])
main(["evaluate", out, *small])
main(["evaluate", out, "--labeled", data, *small])
main(["evaluate", out, "--compare"])
main(["report", out])
main(["methods"])
sys.exit(str(SEEN) if SEEN else 0)
"""


@pytest.mark.slow
def test_no_command_reaches_a_network_or_reads_a_pickle(tmp_path):
    from tests.folders import images

    data = images(tmp_path / "photos", count=24)
    words = [sys.executable, "-c", NO_NETWORK, str(data), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["open to all", "link"])
def test_the_temporary_folder_of_another_user_is_not_used(kind, tmp_path, monkeypatch):
    """Its name is known, so anyone may have created it first; its indexes say what is read."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # cannot be written, even by root
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = dataset_index.temporary_folder()
    theirs = folder if kind == "open to all" else tmp_path / "theirs"
    theirs.mkdir()
    if kind == "link":
        folder.symlink_to(theirs)
    else:
        theirs.chmod(0o777)
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        info, content = tarfile.TarInfo("a.png"), png(pixels(8, 8))
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(UserError, match="only you can write to"):
        open_source(tmp_path / "set.tar")
    assert not list(theirs.iterdir())
    folder.unlink() if kind == "link" else folder.rmdir()
    assert len(open_source(tmp_path / "set.tar")) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
