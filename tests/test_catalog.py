"""The lists of methods, recipes and studies, as a person and a program read them."""

import json
import re

import pytest

from selfsight.catalog import build_recipe, list_flags, list_recipes
from selfsight.cli.main import main
from selfsight.cli.print_catalog import _published_number
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.recipe import override
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS, STUDIES
from selfsight.terminal.console import format_setting, format_value


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
    words = printed(capsys, "recipes", "byol.imagenet_r50_1000ep").split()
    assert words[words.index("--optim.weight-decay") + 1] == "1.5e-6"


def test_the_numbers_of_every_recipe_are_printed_as_typed_and_read_back():
    """No exponent of Python's such as 6.554e+04 or 1e-06, and no digit that counts is lost."""
    for name in (*RECIPES, *(f"{study.name}.{study.arms[0].name}" for study in STUDIES.values())):
        for row in list_flags(name):
            values = row["value"] if isinstance(row["value"], list | tuple) else [row["value"]]
            for value in values:
                if isinstance(value, float):
                    text = format_setting(value)
                    assert not re.search(r"e\+|e-0|\.0$", text), (name, row["flag"], text)
                    assert float(text) == pytest.approx(value, rel=1e-5), (name, row["flag"])


def test_tables_have_no_exponents_for_large_numbers():
    values = (65536.0, 123456.7, -65536.0, 1234.5678, 0.00012345, 3.0, 65536, float("inf"))
    texts = ["65,536", "123,457", "-65,536", "1235", "0.0001234", "3", "65,536", "inf"]
    assert [format_value(value) for value in values] == texts


# ResNet-50 on ImageNet, linear top-1 in percent, by (epochs, batch size): the papers and the
# repositories of their authors; BYOL and SimSiam of fewer epochs are SimSiam's table 4.
PUBLISHED = {
    "barlow_twins": {(1000, 2048): 73.2},
    "byol": {(100, 4096): 66.5, (1000, 4096): 74.3},
    "fast_moco": {(100, 512): 73.5, (200, 512): 75.1, (400, 512): 75.5},
    "instdisc": {(200, 256): 54.0},
    "jcl": {(200, 256): 68.7},
    "moco": {(200, 256): 67.5, (800, 256): 71.1},
    "mocov3": {(100, 4096): 68.9, (300, 4096): 72.8, (800, 4096): 73.8, (1000, 4096): 74.6},
    "nnclr": {(100, 4096): 69.4, (1000, 4096): 75.4},
    "simclr": {(100, 4096): 64.5, (200, 4096): 66.6, (1000, 4096): 69.3},
    "simo": {(100, 256): 64.4, (200, 256): 68.0},
    "simsiam": {
        (100, 512): 68.1,
        **{(100, 256): 68.1, (200, 256): 70.0, (400, 256): 70.8, (800, 256): 71.3},
    },
    "swav": {(800, 4096): 75.3},
    "vicreg": {(1000, 2048): 73.2},
}


def test_a_number_quoted_without_a_star_is_published_for_those_epochs_and_that_batch_size():
    compared = 0
    for row in list_recipes():
        number, _, metric = _published_number(row["reference"]).partition(" ")
        plain = re.fullmatch(r"\w+\.imagenet_(r50|v2)_\d+ep", row["name"])
        if plain and metric == "linear":
            known = PUBLISHED[row["method"]]
            assert known[row["epochs"], row["batch_size"]] == float(number), row["name"]
            compared += 1
        quoted = re.match(r"[^(;]*batch (\d+)", row["reference"] or "")
        if quoted and int(quoted[1]) != row["batch_size"]:
            assert metric.endswith("*"), row["name"]
    assert compared >= 20


def test_studies_are_listed_with_their_published_numbers(capsys):
    text = printed(capsys, "studies")
    assert all(name in text for name in STUDIES)
    assert max(map(len, text.splitlines())) <= 80
    rows = {row["name"]: row for row in json.loads(printed(capsys, "studies", "--json"))}
    assert (rows["msbreg_lambdas"]["arms"], rows["msbreg_lambdas"]["published"]) == (72, 60)
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
    of_scale = {row["scale"]: row for row in rows if row["name"] == "eqco_negatives.cifar10_v2_k16"}
    assert of_scale.keys() == {"cifar10", "small"}
    assert of_scale["cifar10"]["linear"] != of_scale["small"]["linear"] and arm["seeds"] == 0


def test_verdicts_have_the_scale_above_them_if_no_arm_was_run(capsys, monkeypatch):
    monkeypatch.setattr("selfsight.cli.print_catalog.read_ledger", list)
    lines = printed(capsys, "studies", "mocov3_batch").splitlines()
    verdict = next(i for i, line in enumerate(lines) if line.startswith("  not run: "))
    assert lines[verdict - 2 : verdict] == ["", "Ours on cifar10, none of 4 arms:"]


def test_one_run_is_not_called_runs(capsys):
    assert not re.search(r"\b1 runs", printed(capsys, "studies"))


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


def test_switches_of_a_recipe_are_printed_as_they_are_typed(capsys):
    text = printed(capsys, "recipes", "moco.cifar10_r18_200ep")
    switches = [line.strip() for line in text.splitlines() if ".no-" in line]
    assert "--method.no-symmetric" in switches
    recipe = build_recipe("moco.cifar10_r18_200ep")
    assert override(recipe, {}, switches) == recipe
