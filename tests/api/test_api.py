"""The Python API: public names, settings by keyword, and the examples of the docstrings."""

import dataclasses
import doctest
import inspect
from types import ModuleType

import pytest

import selfsight
from selfsight import api
from selfsight.errors import UserError
from selfsight.options.eval_options import EvalOptions
from selfsight.options.parse_flags import change_options
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe_from_options import _apply
from selfsight.recipes import RECIPES
from tests.folders import images

# In the order in which a person would call them: each example may use names of those before it.
FUNCTIONS = [
    "doctor",
    "pretrain",
    "resume",
    "evaluate",
    "compare",
    "load",
    "classify",
    "load_classifier",
    "embed",
    "search",
    "explore",
]
FUNCTIONS += ["export", "report", "replay", "reproduce", "study", "build_recipe", "Recipe"]


def public_names():
    """Every public name but modules, the table of methods and the version."""
    names = set(selfsight.__all__) - {"METHODS", "__version__"}
    return {name for name in names if not isinstance(getattr(selfsight, name), ModuleType)}


def examples(name):
    text = inspect.getdoc(getattr(selfsight, name)) or ""
    return doctest.DocTestParser().get_examples(text)


def test_the_functions_of_the_commands_are_listed():
    wanted = ["pretrain", "resume", "evaluate", "load", "embed", "search", "export"]
    wanted += ["explore", "doctor", "report"]
    assert set(wanted) <= set(dir(selfsight))
    assert all(inspect.isfunction(getattr(selfsight, name)) for name in wanted)


def test_every_public_name_has_an_example_and_type_hints():
    for name in public_names():
        assert examples(name), f"selfsight.{name} has no example"
        value = getattr(selfsight, name)
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            hints = [p.annotation for p in signature.parameters.values()]
            assert inspect.Signature.empty not in [*hints, signature.return_annotation], name


@pytest.mark.slow
def test_every_example_runs(tmp_path, monkeypatch):
    """What an example prints does not count, what it returns does."""
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "photos")
    names = {"selfsight": selfsight, "dataclasses": dataclasses}
    for name in [*FUNCTIONS, *sorted(public_names() - set(FUNCTIONS))]:
        for example in examples(name):
            if example.want:
                assert f"{eval(example.source, names)!r}\n" == example.want, name
            elif not example.options:
                exec(example.source, names)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"optim.lr": 0.3}, ["--optim.lr=0.3"]),
        ({"views.0.scale": (0.2, 1.0)}, ["--views.0.scale", "0.2", "1.0"]),
        ({"optim.exclude_1d": True}, ["--optim.exclude-1d"]),
        ({"compile": False, "chunk": None}, ["--no-compile", "--chunk=None"]),
    ],
)
def test_a_setting_by_keyword_is_the_flag_of_the_command(changes, flags):
    options = change_options(PretrainOptions(epochs=3), changes)
    assert options == PretrainOptions(epochs=3, settings=flags)
    recipe = _apply(RECIPES["simclr.shapes"](), "photos", PretrainOptions(settings=flags))
    for name, value in changes.items():
        at = recipe
        for part in name.split("."):
            at = at[int(part)] if part.isdecimal() else getattr(at, part)
        assert at == value


def test_a_wrong_keyword_is_named_with_the_nearest():
    with pytest.raises(UserError, match='no option "protocol"'):
        change_options(EvalOptions(), {"protocol": "knn"})
    with pytest.raises(UserError, match='Did you mean "format"'):
        api.embed("run", "photos", form="npy")
    for name, near in {
        "epoch": "--epochs",
        "optim.lrr": "--optim.lr",
        "lables": "--labels",
    }.items():
        with pytest.raises(UserError, match=f'Did you mean "{near}"'):
            _apply(RECIPES["simclr.shapes"](), "x", change_options(PretrainOptions(), {name: 1}))
