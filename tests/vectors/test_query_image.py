"""Images of a run that are similar to a new one, against numpy; the command that serves them."""

import base64
import io
import json
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image

import selfsight
from selfsight.cli.main import main
from selfsight.data.image_limits import UnreadableError
from selfsight.encoders.load_encoder import load_recipe
from selfsight.run_files.json_files import write_json
from selfsight.vectors.query_image import build_finder
from tests.exporters.saved_run import save_photo, save_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "photos").mkdir()
    for i in range(14):
        save_photo(home / f"photos/{i:02}.png", (50 + i, 44), seed=i)
    run = save_run(home / "mine", name="resnet8_narrow", image_size=32)
    recipe = run.saved_recipe()
    recipe["data"] |= {"path": str(home / "photos"), "store_size": 44}
    write_json(run.recipe_path, recipe)
    return run


def test_the_images_of_the_run_are_sorted_as_by_numpy(run):
    find = build_finder(run, load_recipe(run), torch.device("cpu"), trust=False)
    photos = sorted(run.path.parent.glob("photos/*"))
    found = find(photos[3].read_bytes())
    h = selfsight.load(run).encode(photos).double().numpy()
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    expected = np.argsort(-(h @ h[3]))[:12]
    assert [row["name"] for row in found["neighbors"]] == [photos[i].name for i in expected]
    values = [row["similarity"] for row in found["neighbors"]]
    np.testing.assert_allclose(values, (h @ h[3])[expected], atol=1e-3)
    assert found["images"] == 14
    shown = base64.b64decode(found["neighbors"][0]["image"].partition(",")[2])
    assert Image.open(io.BytesIO(shown)).size == (112, 112)
    for data in (b"", b"no image", photos[3].read_bytes()[:200]):
        with pytest.raises(UnreadableError):
            find(data)


def test_serving_and_a_summary_exclude_each_other(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(run.path), "--serve", "--json"])
    assert "Use one of them" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(run.path), "--serve", "--port", "70000"])
    assert "port is 70000" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(run.path), "--port", "8000"])
    assert "Add --serve, or leave it out" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(run):
    command = [sys.executable, "-m", "selfsight", "report", str(run.path), "--serve"]
    process = subprocess.Popen(
        [*command, "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        photo = next(run.path.parent.glob("photos/*")).read_bytes()
        with urllib.request.urlopen(f"{address}query", data=photo, timeout=30) as response:
            assert json.load(response)["neighbors"][0]["similarity"] == 1
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.strip() == f"selfsight: stopped serving {run.path}."
