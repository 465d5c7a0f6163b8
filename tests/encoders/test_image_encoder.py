"""The encoder that `selfsight.load` returns gives what `evaluate` measures."""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import selfsight
from selfsight import api
from selfsight.cli.main import main
from selfsight.data import open_source
from selfsight.encoders.load_encoder import load_encoder
from selfsight.errors import UserError
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.extract_features import features
from selfsight.run_files.run_folder import Run
from tests.folders import QUICK, images

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two shapes, neither that of what the run sees."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    images(folder, count=24, size=(90, 61))
    return images(folder, count=10, size=(50, 75))


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mine"
    main(["pretrain", str(photos), *QUICK, "--epochs", "1", "--out", str(out)])
    return Run(out)


@pytest.fixture(scope="module")
def measured(run, photos):
    """The files, and the features that evaluate has of them."""
    under_test = load_encoder(str(run.path), CPU)
    found = EvalImages(open_source(str(photos), labels=True), under_test.transform)
    files = [photos / name for name in found.names]
    return files, features(under_test.network, found, under_test.transform).h


def test_features_are_bit_equal_to_those_that_evaluate_measures(run, measured):
    files, expected = measured
    encoder = api.load(run)
    assert encoder.transform == load_encoder(str(run.path), CPU).transform
    with torch.no_grad():
        assert torch.equal(encoder(encoder.transform(files)), expected)
    assert torch.equal(encoder.encode(files), expected)
    assert torch.equal(encoder.encode([Image.open(file) for file in files]), expected)
    pixels = [np.asarray(Image.open(file)) for file in files]
    assert torch.equal(encoder.encode(pixels), expected)


@pytest.mark.gpu
def test_features_are_bit_equal_on_a_gpu_too(run, photos):
    under_test = load_encoder(str(run.path), torch.device("cuda"))
    source = open_source(str(photos), labels=True)
    found = EvalImages(source, under_test.transform, "cuda")
    expected = features(under_test.network, found, under_test.transform).h
    files = [photos / name for name in found.names]
    encoder = api.load(run, device="cuda")
    assert torch.equal(encoder.encode(files), expected)
    with torch.no_grad():
        assert torch.equal(encoder(encoder.transform(files).cuda()), expected)
    crops = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    on_gpu = encoder.transform.normalize(crops.cuda())
    assert torch.equal(on_gpu.cpu(), encoder.transform.normalize(crops))


def test_one_image_gives_one_vector(run, measured):
    files, expected = measured
    encoder = api.load(run)
    with torch.no_grad():
        one = encoder(encoder.transform(files[3]))
    torch.testing.assert_close(one, expected[3])  # another batch size rounds otherwise
    assert torch.equal(encoder.encode(files[3]), one)
    assert encoder.encode([]).shape == (0, encoder.dim)


def test_batches_are_encoded_in_evaluation_mode_and_nothing_changes(run, measured):
    files, expected = measured
    encoder = api.load(run).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    torch.testing.assert_close(encoder.encode(files, batch_size=7), expected)
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_an_encoder_travels_with_its_transform(run, measured):
    files, expected = measured
    copied = pickle.loads(pickle.dumps(api.load(run)))
    assert torch.equal(copied.encode(files), expected)
    exported = torch.export.export(api.load(run), (copied.transform(files),)).module()
    torch.testing.assert_close(exported(copied.transform(files)), expected)


def test_the_code_of_the_evaluation_page_runs(run, measured, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/evaluation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(run.path)
    for name, file in zip(("a.jpg", "b.jpg"), measured[0], strict=False):
        shutil.copy(file, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names = {"selfsight": selfsight}
    with torch.no_grad():
        exec(code, names)
    side = names["encoder"].transform.size
    assert names["x"].shape == (3, side, side)
    torch.testing.assert_close(names["h"], names["encoder"].encode(measured[0])[0])


def test_what_cannot_be_read_is_named(run, tmp_path):
    encoder = api.load(run)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken\.jpg cannot be read"):
        encoder.encode([tmp_path / "broken.jpg"])
    with pytest.raises(UserError, match="is a folder; give its files"):
        encoder.encode([tmp_path])
    with pytest.raises(UserError, match="uint8 are expected"):
        encoder.encode(np.zeros((4, 4, 3)))
