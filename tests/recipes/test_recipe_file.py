"""A recipe as a file: saved, changed, read back; JSON never runs code."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import to_dict
from selfsight.recipes import RECIPES
from selfsight.recipes.recipe_file import read_recipe
from selfsight.runs.new_run_folder import choose_folder

NAME = "simclr.shapes"
FUNCTION = """
from dataclasses import replace
from selfsight.recipes import RECIPES

def short():
    return replace(RECIPES["simclr.shapes"](), epochs=3)

def wrong():
    return {"epochs": 3}

def fails():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_recipe", raising=False)
    Path("my_recipe.py").write_text(FUNCTION)


def test_a_recipe_is_saved_changed_and_read_back(capsys):
    main(["recipes", NAME, "--save", "my recipe.json"])
    assert "--recipe 'my recipe.json'" in capsys.readouterr().out
    assert read_recipe("my recipe.json") == RECIPES[NAME]()
    saved = json.loads(Path("my recipe.json").read_text())
    saved["optim"]["lr"] = 0.125
    Path("other.json").write_text(json.dumps(saved))
    base = RECIPES[NAME]()
    assert read_recipe("other.json") == replace(base, optim=replace(base.optim, lr=0.125))
    main(["recipes", "other.json", "--json"])
    rows = {row["flag"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["--optim.lr"] == 0.125
    with pytest.raises(SystemExit, match="2"):
        main(["recipes", NAME, "--save", "other.json"])
    assert "other.json exists" in capsys.readouterr().err


def test_the_recipe_of_a_run_is_a_recipe_without_its_images():
    recipe = RECIPES[NAME]()
    of_run = to_dict(replace(recipe, data=replace(recipe.data, path="photos")))
    of_run |= {"data_fingerprint": {}, "versions": {}, "reasons": {}}
    Path("recipe.json").write_text(json.dumps(of_run))
    assert read_recipe("recipe.json") == recipe


def test_a_function_in_a_file_builds_a_recipe():
    assert read_recipe("my_recipe.py:short").epochs == 3
    folders = {"my_recipe.py:short": "photos-my_recipe-short", "a/b.json": "photos-b"}
    for recipe, folder in folders.items():
        assert choose_folder("photos", PretrainOptions(recipe=recipe)) == Path("runs") / folder


def change(**values):
    return json.dumps(to_dict(RECIPES[NAME]()) | values)


BAD = {
    "gone.json": (None, 'There is no file "gone.json". Write one with: selfsight recipes'),
    "a.json": ("{", "a.json is damaged"),
    "b.json": ("[]", "b.json is damaged"),
    "c.json": (change(epoch=3), 'c.json has "epoch", which no recipe has. Did you mean "epochs"?'),
    "d.json": (change(epochs=0), "d.json is not a recipe: epochs is 0; it must be 1 or more"),
    "e.json": (change(method={"name": "my_recipe:Config"}), "a recipe in JSON never runs code"),
    "f.json": (change(backbone={"name": "my_recipe:Net"}), "a recipe in JSON never runs code"),
    "gone.py:short": (None, 'There is no file "gone.py"'),
    "my_recipe.py:wrong": (None, "returned dict; it must return a selfsight.Recipe"),
    "my_recipe.py:fails": (None, "ZeroDivisionError: division by zero"),
    "my_recipe.py:gone": (None, "has no attribute 'gone'"),
    "json.py:short": (FUNCTION, 'Another module is called "json". Rename json.py.'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_a_sentence(name):
    text, sentence = BAD[name]
    if text is not None:
        Path(name.partition(":")[0]).write_text(text)
    with pytest.raises(UserError) as caught:
        read_recipe(name)
    assert sentence in str(caught.value)
