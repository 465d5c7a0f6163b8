"""Results on other images than those of the scale are never compared with them."""

from dataclasses import replace

import pytest

import selfsight
from selfsight import api
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.studies import run_study, train_arms
from selfsight.studies.ledger import read_results
from selfsight.studies.study_page import build_study_page
from tests.studies.test_train_arms import EQCO, entry_of, jobs_of, shapes_of

OTHER = {"train": 24, "test": 12, "classes": 12}  # as many as `shapes_of` writes


@pytest.fixture
def folders(tmp_path):
    """A ledger like that of the package, with two arms, and one with results on other images."""
    package, own = tmp_path / "package", tmp_path / "own"
    package.mkdir()
    own.mkdir()
    k16, k4096 = jobs_of("cifar10_v2_k16", "cifar10_v2_k4096")
    version = {"commit": "0123456789"}
    for job in (k16, k4096):
        entry_of(job, version=version).write(package)
    entry_of(k16, seed=1, version=version, images=OTHER).write(own)
    return package, own


def test_a_page_of_other_images_has_only_those_and_says_so(folders):
    package, own = folders
    entries = read_results("cifar10", own, package)
    assert [entry.images for entry in entries] == [OTHER]
    page = build_study_page(EQCO, "cifar10", entries)
    assert "eqco_negatives on 24 other images" in page and "24 of 25 arms were not run" in page
    assert len(read_results("imagenette", own, package)) == 3  # the other scales are as they were
    assert "eqco_negatives on CIFAR-10" in build_study_page(
        EQCO, "cifar10", read_results("cifar10", None, package)
    )


def test_a_folder_with_results_on_two_sets_of_images_is_refused(folders):
    package, own = folders
    (job,) = jobs_of("cifar10_v2_k4096")
    held_out = replace(job, held_out=True)  # of 24 images
    entry_of(held_out, images={"train": 20, "test": 4}).write(own)
    assert len(read_results("cifar10", own, package)) == 2
    entry_of(job).write(own)
    with pytest.raises(UserError, match=r"on 24 and on 50,000 training images, .* two folders"):
        read_results("cifar10", own, package)


def test_results_of_the_package_do_not_count_for_other_images(folders, tmp_path, monkeypatch):
    package, own = folders
    planned = []
    monkeypatch.setattr(run_study, "RESULTS", package)
    monkeypatch.setattr(
        train_arms, "run_jobs", lambda jobs, *_, **__: planned.append([j.name for j in jobs]) or []
    )
    wanted = {"arms": ["cifar10_v2_k16"], "seeds": [0, 1], "device": "cpu", "quiet": True}
    selfsight.study("eqco_negatives", data=shapes_of(tmp_path), ledger=own, **wanted)
    selfsight.study("eqco_negatives", **wanted)
    zero, one = (f"eqco_negatives.cifar10_v2_k16, seed {seed}" for seed in (0, 1))
    assert planned == [[zero], [one]]


def test_an_arm_is_reproduced_on_the_images_of_its_results_only(folders, tmp_path, monkeypatch):
    package, own = folders
    monkeypatch.setattr(run_study, "RESULTS", package)
    trained = []
    monkeypatch.setattr(run_study, "_train_missing", lambda *_, **__: trained.append(1) or [])
    path, arm = shapes_of(tmp_path), "eqco_negatives.cifar10_v2_k16"
    with pytest.raises(UserError, match=r"gives 24 training images, .* was trained on 50,000"):
        api.reproduce(arm, data=path, device="cpu")
    assert not trained
    with pytest.raises(ValueError, match="not enough values"):  # nothing was trained here
        api.reproduce(arm, data=path, device="cpu", ledger=own)
    assert trained
    with pytest.raises(UserError, match="nowhere, which is not a folder with results"):
        api.reproduce(arm, ledger="nowhere")


def test_the_command_says_which_results_are_not_on_the_page(folders, tmp_path, capsys):
    _, own = folders
    (job,) = jobs_of("cifar10_v2_k16", settings=("--optim.lr", "0.5"))
    entry_of(job, images=OTHER).write(own)
    page = tmp_path / "page.html"
    main(["studies", "eqco_negatives", "--page", str(page), "--ledger", str(own)])
    printed = capsys.readouterr()
    assert printed.out.strip() == str(page)
    assert "1 of 2 results" in printed.err and "other settings" in printed.err
