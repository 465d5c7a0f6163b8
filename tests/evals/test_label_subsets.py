import json
from pathlib import Path

import pytest
import torch

from selfsight.errors import UserError
from selfsight.evals.few_label_settings import PUBLISHED
from selfsight.evals.label_subsets import (
    LabelAmount,
    describe_small_classes,
    find_by_name,
    load_or_sample_few,
    sample_balanced,
)
from tests.evals.small_networks import bright


@pytest.mark.parametrize(("amount", "each"), [({"share": 0.1}, 10), ({"per_class": 3}, 3)])
def test_every_class_gives_as_many(amount, each):
    labels = torch.arange(300) % 3
    few = sample_balanced(labels, LabelAmount(**amount))
    assert labels[few].bincount().tolist() == [each] * 3
    assert few.tolist() == sorted(set(few.tolist()))


def test_a_share_is_of_all_images_and_balanced_where_they_are_not():
    labels = torch.tensor([0] * 150 + [1] * 50)
    few = sample_balanced(labels, LabelAmount(share=0.1))
    assert labels[few].bincount().tolist() == [10, 10]


def test_a_class_with_fewer_gives_all_it_has():
    labels = torch.tensor([0] * 20 + [1] * 2)
    assert labels[sample_balanced(labels, LabelAmount(per_class=5))].bincount().tolist() == [5, 2]


def test_classes_with_fewer_labels_than_asked_for_are_named():
    y, names = torch.tensor([0, 0, 0, 2]), ("a", "b", "c")
    (note,) = describe_small_classes(y, LabelAmount(per_class=2), names)
    assert note == '1 class has fewer than 2 labels: "c" 1.'
    assert describe_small_classes(y, LabelAmount(per_class=1), names) == ()
    assert describe_small_classes(y, LabelAmount(share=1.0), names) == ()


def test_the_seed_decides():
    labels = torch.arange(200) % 2
    draws = [sample_balanced(labels, LabelAmount(share=0.1), seed=s).tolist() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_a_choice_is_made_once_and_holds_its_names(tmp_path):
    images = bright(60)
    few = load_or_sample_few(tmp_path, images, LabelAmount(per_class=2))
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    assert kept["images"] == few.tolist()
    assert kept["names"] == [images.names[i] for i in few.tolist()]
    kept["images"] = [0, 1, 2]
    file.write_text(json.dumps(kept))
    assert load_or_sample_few(tmp_path, images, LabelAmount(per_class=2)).tolist() == [0, 1, 2]
    load_or_sample_few(tmp_path, images, LabelAmount(per_class=3))
    assert len(list(tmp_path.iterdir())) == 2


def test_few_are_taken_among_those_that_may_be_learned_from(tmp_path):
    among = torch.arange(0, 60, 2)
    few = load_or_sample_few(tmp_path, bright(60), LabelAmount(per_class=4), candidates=among)
    assert set(few.tolist()) <= set(among.tolist())
    assert len(few) == 12


def test_another_seed_or_other_training_images_get_a_sample_of_their_own(tmp_path):
    def sample(**settings):
        few = load_or_sample_few(tmp_path, bright(60), LabelAmount(per_class=4), **settings)
        return set(few.tolist())

    first, second = torch.arange(30), torch.arange(30, 60)  # with the same labels
    assert sample(candidates=first, seed=0) != sample(candidates=first, seed=1)
    assert sample(candidates=second) <= set(second.tolist())
    assert len(list(tmp_path.iterdir())) == 3


def test_a_saved_sample_with_an_image_that_is_not_for_training_is_damaged(tmp_path):
    settings = {"candidates": torch.arange(30)}
    load_or_sample_few(tmp_path, bright(60), LabelAmount(per_class=4), **settings)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"images": [0, 30]}))
    with pytest.raises(UserError, match=f"{file.name} is damaged"):
        load_or_sample_few(tmp_path, bright(60), LabelAmount(per_class=4), **settings)


def test_a_list_names_images_by_path_or_by_file(tmp_path):
    names = ["cats/a.jpg", "cats/b.jpg", "dogs/c.jpg", "dogs/d.jpg"]
    file = tmp_path / "1percent.txt"
    file.write_text("d.jpg\ncats/a.jpg\n\n")
    assert find_by_name(names, file).tolist() == [0, 3]


def test_a_file_name_of_several_folders_needs_its_folder(tmp_path):
    names = [f"{kind}/{i:04}.jpg" for kind in ("cats", "dogs", "fish") for i in range(2)]
    file = tmp_path / "list.txt"
    file.write_text("\n".join(f"train/{name}" for name in names[:4]))  # in another folder
    assert find_by_name(names, file).tolist() == [0, 1, 2, 3]
    file.write_text("dogs/0001.jpg\n0001.jpg\n")
    with pytest.raises(UserError, match=r'1, such as "0001.jpg", .*several have that name'):
        find_by_name(names, file)


def test_the_error_for_an_unknown_name_suggests_the_nearest(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("n01440764_10026.JPEG\nn01440764_10027.JPEG\n")
    with pytest.raises(UserError, match=r"2, such as .*10026.JPEG.*Did you mean"):
        find_by_name(["n01440764/n01440764_10025.JPEG"], file)
    file.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        find_by_name(["a.jpg"], file)
    with pytest.raises(UserError, match="cannot be read"):
        find_by_name(["a.jpg"], tmp_path / "missing.txt")


def test_a_list_of_test_images_alone_is_an_error(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("p1.png\n")
    with pytest.raises(UserError, match="lists only test images"):
        load_or_sample_few(
            tmp_path, bright(6), LabelAmount(file=file), candidates=torch.tensor([0, 2])
        )


def test_amounts_without_meaning_are_refused():
    for wrong in ({}, {"share": 0.1, "per_class": 2}, {"share": 0.0}, {"per_class": 0}):
        with pytest.raises(UserError):
            LabelAmount(**wrong)
    with pytest.raises(UserError, match="less than one for each of 3 classes"):
        sample_balanced(torch.arange(30) % 3, LabelAmount(share=0.01))
    assert LabelAmount(file=Path("x/1percent.txt")).description == "1percent.txt"


def test_published_settings_fall_at_60_and_80_percent():
    for name in ("fast_moco_1", "fast_moco_10", "swav_1", "swav_10", "msbreg_1", "msbreg_10"):
        _, training = PUBLISHED[name]
        schedule, epochs = training.head.schedule, training.epochs
        rates = [
            schedule.lr(e, epochs, 1.0) for e in (0.0, 0.59 * epochs, 0.6 * epochs, 0.8 * epochs)
        ]
        assert rates == pytest.approx([1, 1, 0.2, 0.04]), name


def test_one_percent_of_fast_moco_and_msbreg_is_frozen():
    assert {n for n, (_, t) in PUBLISHED.items() if t.backbone is None} == {
        "fast_moco_1",
        "msbreg_1",
    }
