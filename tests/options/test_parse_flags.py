"""An error about a flag says in one sentence what is wrong, and suggests the nearest flag."""

import pytest

import selfsight
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.options import parse_flags
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import override
from selfsight.recipes import RECIPES

MISTAKES = {
    "pretrain x --epoch 3": 'There is no flag --epoch. Did you mean "--epochs"?',
    "pretrain x --lables": 'There is no flag --lables. Did you mean "--labels"?',
    "report --jsn x": 'There is no flag --jsn. Did you mean "--json"?',
    "pretrain -x": "There is no flag -x. If it is the name of a file, write ./-x.",
    "conformance simclr --dim 3": "There is no flag --dim.",
    "pretrain x --epochs a": 'epochs is "a"; it must be a whole number, or None.',
    "pretrain x --epochs=": 'epochs is ""; it must be a whole number, or None.',
    "evaluate r --k 3 a": 'k is "3 a"; it must be a whole number, or a list',
    "bench --seconds x": 'seconds is "x"; it must be a number.',
    "embed r d --format prquet": 'one of parquet, npy. Did you mean "parquet"?',
    "pretrain": "DATA is missing. A folder (of any depth), a .txt list",
    "pretrain x y": '"y" is one argument too many.',
    "pretrain x --labels 0": '--labels takes no value: "0" is one argument too many.',
    "pretrain x --labels=0": "--no-labels switches it off.",
    "pretrain x --compile 0": '--compile takes no value: "0"',
    "pretrain x --epochs 1 --resume 1": '"1" is one argument too many after --epochs or',
    "study methods --seeds 2 1 2": "--seeds has 2 more than once",
    "pretrain x --recipe": "--recipe needs a value.",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_wrong_word_gets_one_sentence(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    out, err = capsys.readouterr()
    assert MISTAKES[words] in err
    assert err.startswith("selfsight: ") and err.count("\n") == 1 and not out


SETTINGS = {
    "--backbone resnet18": 'There is no flag --backbone. Did you mean "--backbone.name"?',
    "--optim.lrr 3": 'There is no flag --optim.lrr. Did you mean "--optim.lr"?',
    "--no-method.head-norm": 'Did you mean "--method.no-head-norm"?',
    "--optim.lr a": 'optim.lr is "a"; it must be a number.',
    "--optim.name sgdd": 'optim.name is "sgdd"; it must be one of sgd, adamw, lars, lamb. Did you',
    "--views.0.scale 0.2": "--views.0.scale needs 2 values.",
    "--views.0.scale 0.2 b": 'views.0.scale is "0.2 b"; it must be 2 values, each a number.',
    "--chunk=x": 'chunk is "x"; it must be a whole number, or None.',
}


@pytest.mark.parametrize("words", SETTINGS)
def test_a_wrong_setting_gets_one_sentence_in_python_too(words):
    with pytest.raises(UserError) as caught:
        override(RECIPES["simclr.shapes"](), {}, words.split())
    assert SETTINGS[words] in str(caught.value)


@pytest.mark.parametrize("settings", [True, "nan", "--5", [3]], ids=repr)
def test_settings_that_are_no_list_of_flags_are_refused_in_python(settings):
    with pytest.raises(UserError, match=r"^settings is .*; it must be a list"):
        selfsight.doctor("x", settings=settings)


def test_what_tyro_refuses_in_a_way_that_is_not_known_here_is_still_printed(monkeypatch, capsys):
    """As a later version of tyro may: its own message, and the same exit status."""
    monkeypatch.setattr(parse_flags, "_refuse", lambda event, **_: None)
    with pytest.raises(SystemExit, match="2"):
        parse_flags.parse_flags(PretrainOptions, args=["--epochs", "a"])
    assert "--epochs" in capsys.readouterr().err
