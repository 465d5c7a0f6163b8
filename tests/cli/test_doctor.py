"""`selfsight doctor` and `selfsight pretrain` agree on what is too little."""

import json

import pytest

from selfsight import api
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.runs import start_or_resume
from tests.folders import images


@pytest.mark.parametrize("count", [2, 15, 16])  # the smallest automatic batch is 8
def test_doctor_says_what_pretrain_would_say(count, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(start_or_resume, "_write_recipe_and_train", lambda *_: True)
    photos = images(tmp_path / "photos", count=count, classes=("a",))
    (photos / "a/broken.jpg").write_bytes(b"not an image")
    main(["doctor", str(photos), "--device", "cpu", "--json"])
    refusal = json.loads(capsys.readouterr().out)["refusal"]
    try:
        api.pretrain(photos, device="cpu", out=tmp_path / "run")
        said = None
    except UserError as error:
        said = str(error)
    assert refusal == said
    assert (refusal is None) == (count == 16)
