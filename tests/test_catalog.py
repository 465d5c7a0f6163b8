"""The lists of methods, recipes and studies, as a person and a program read them."""

import json

import pytest

from selfsight.catalog import build_recipe
from selfsight.cli import main
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS, STUDIES


def printed(capsys, *words):
    main(list(words))
    return capsys.readouterr().out


def test_recipes_are_a_short_list_within_80_columns(capsys):
    text = printed(capsys, "recipes")
    assert all(name in text for name in RECIPES)
    lines = text.splitlines()
    assert len(lines) < 2 * len(RECIPES)
    assert max(map(len, lines)) <= 80


def test_recipes_are_filtered_by_a_word(capsys):
    rows = json.loads(printed(capsys, "recipes", "cifar", "--json"))
    assert {row["data"] for row in rows} == {"cifar10"}
    assert {row["name"] for row in rows} == {name for name in RECIPES if "cifar" in name}
    rows = json.loads(printed(capsys, "recipes", "moco", "--json"))
    assert {row["method"] for row in rows} == {"moco", "mocov3", "fast_moco"}


def test_recipes_are_grouped_by_method_and_data_set(capsys):
    rows = json.loads(printed(capsys, "recipes", "--json"))
    groups = [(row["method"], row["data"]) for row in rows]
    changes = [a for a, b in zip(groups, [None, *groups], strict=False) if a != b]
    assert len(changes) == len(set(groups))


def test_a_recipe_is_listed_with_its_published_number(capsys):
    rows = {row["name"]: row for row in json.loads(printed(capsys, "recipes", "--json"))}
    row = rows["mocov3.imagenet_r50_100ep"]
    assert row["reference"] == "68.9 % linear top-1 (facebookresearch/moco-v3, CONFIG.md)"
    assert (row["epochs"], row["batch_size"], row["backbone"]) == (100, 4096, "resnet50")
    text = printed(capsys, "recipes", "byol")
    assert "86.8 kNN*" in text, "the number is for 200 epochs, the recipe has 100"


def test_one_recipe_is_shown_with_plain_numbers(capsys):
    text = printed(capsys, "recipes", "moco.imagenet_v2_200ep")
    assert "Reference: 67.5 % linear top-1" in text
    words = text.split()
    assert words[words.index("--method.queue-size") + 1] == "65536"
    assert words[words.index("--optim.weight-decay") + 1] == "0.0001"
    text = printed(capsys, "recipes", "eqco_negatives.v2_eqco_k16")
    assert "--method.alpha" in text and " 65536\n" in text and "plotted, not printed" in text


def test_studies_are_listed_with_their_published_numbers(capsys):
    text = printed(capsys, "studies")
    assert all(name in text for name in STUDIES)
    assert max(map(len, text.splitlines())) <= 80
    rows = {row["name"]: row for row in json.loads(printed(capsys, "studies", "--json"))}
    assert (rows["msbreg_lambdas"]["arms"], rows["msbreg_lambdas"]["published"]) == (68, 60)
    rows = json.loads(printed(capsys, "studies", "vit", "--json"))
    assert "mocov3_vit" in [row["name"] for row in rows]


def test_a_study_is_listed_with_its_arms_within_80_columns(capsys):
    for name in ("eqco_negatives", "jcl_multi_key", "simo_alpha"):
        text, study = printed(capsys, "studies", name), STUDIES[name]
        assert max(map(len, text.splitlines())) <= 80, name
        for arm in study.arms:
            assert f"  {arm.name} " in text, (name, arm.name)
    rows = json.loads(printed(capsys, "studies", "eqco_negatives", "--json"))
    arm = next(row for row in rows if row["name"] == "eqco_negatives.v1_eqco_k256")
    assert arm["published"] == 60.4
    assert arm["settings"] == ["--method.queue-size 256", "--method.alpha 65536"]


def test_methods_are_listed_with_their_papers(capsys):
    assert {row["name"] for row in json.loads(printed(capsys, "methods", "--json"))} >= set(METHODS)
    text = printed(capsys, "methods")
    assert "arXiv:2104.02057" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_arm_is_named_where_a_recipe_is():
    assert build_recipe("eqco_negatives.v2_k16").method.queue_size == 16
    assert not set(ARMS) & set(RECIPES)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("moco.imagenet_v2_20ep", "moco.imagenet_v2_200ep"),
        ("eqco_negatives.v2_k17", "eqco_negatives.v2_k1"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(UserError, match=f'Did you mean "{near}'):
        build_recipe(name)
