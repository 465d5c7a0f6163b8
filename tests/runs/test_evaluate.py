"""The evaluate command: options, results and errors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from selfsight import api
from selfsight.backbones import BackboneConfig
from selfsight.backbones.vit import ViT
from selfsight.cli.main import main
from selfsight.encoders.load_encoder import EncoderUnderTest, check_encodes, load_recipe
from selfsight.errors import UserError
from selfsight.evals.detection import DetectionEvaluator
from selfsight.evals.extract_features import Features
from selfsight.evals.svm import SVM
from selfsight.recipe import eval_transform
from selfsight.run_files.run_folder import Run
from selfsight.runs import describe_results, evaluate, image_sheets
from selfsight.runs.compare_runs import compare
from selfsight.runs.score_encoders import score_labeled
from selfsight.train import checkpoint
from tests.cli.test_main import fails
from tests.data.image_files import png, write
from tests.evals.detection.generated_data import rectangles
from tests.evals.detection.test_instances import voc
from tests.evals.small_networks import TRANSFORM, Means, bright
from tests.folders import QUICK, images

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=40)


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mine"
    words = ("--method", "simclr", "--epochs", "1")  # no teacher: a small checkpoint
    main(["pretrain", str(photos), *QUICK, *words, "--out", str(out)])
    return Run(out)


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may write to."""
    shutil.copytree(finished.path, tmp_path / "mine")
    return Run(tmp_path / "mine")


def evaluated(capsys, *words):
    main(["evaluate", *map(str, words), *CPU, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_result_holds_numbers_settings_seed_and_source(run, photos, capsys):
    found = evaluated(capsys, run.path, "--labeled", photos, "--k", "1", "3", "--seed", "4")
    assert set(found) == {"knn", "linear", "baselines"}
    assert found["knn"] == run.result("knn")
    assert {"accuracy", "accuracy_k1", "accuracy_k3", "untrained_accuracy"} <= set(found["knn"])
    for name in ("knn", "linear"):
        settings = run.result(name)["settings"]
        assert settings["seed"] == 4
        assert settings["features"] == "backbone"
        assert (settings["train"], settings["test"]) == (32, 8)
    assert found["knn"]["settings"]["k"] == [1, 3]
    assert {"seed", "features"} <= set(run.result("baselines")["settings"])


def test_protocols_that_train_take_epochs_and_settings(run, tmp_path, capsys):
    few = images(tmp_path / "few", count=20)
    found = evaluated(
        capsys,
        run.path,
        *("--labeled", few, "--protocol", "linear.moco", "fine_tune.pets"),
        *("--epochs", "1", "--batch-size", "16", "--head.lr", "0.5", "--no-untrained"),
    )
    assert set(found) == {"linear.moco", "fine_tune.pets"}
    for result in found.values():
        assert result["settings"]["epochs"] == 1
        assert result["settings"]["batch_size"] == 16
        assert result["settings"]["head"]["lr"] == 0.5
        assert result["settings"]["stored_size"] == 256
        assert "untrained_accuracy" not in result
    assert "ema_accuracy" in run.result("fine_tune.pets")
    kinds = [found[n]["settings"]["transform"]["interpolation"] for n in found]
    assert kinds == ["bilinear", "bicubic"]


def test_the_sweep_takes_its_rates_and_says_which_won(run, photos, capsys):
    words = (run.path, "--labeled", photos, "--protocol", "linear.sgd", "--epochs", 2, *CPU)
    main(["evaluate", *map(str, words), "--set.lrs", "0.25", "--set.weight-decays", "0.125"])
    assert "linear.sgd: selected lr 0.25 and weight decay 0.125" in capsys.readouterr().out
    assert run.result("linear.sgd")["settings"]["lrs"] == [0.25]


@pytest.mark.parametrize(
    ("result", "printed"),
    [
        (
            {"train_loss": 1.0, "box_AP": 0.5, "box_AP50": 0.8, "mask_AP_s": 0.1, "settings": {}},
            ["box_AP", "box_AP50", "mask_AP_s"],
        ),
        (
            {"accuracy": 0.5, "ema_accuracy": 0.4, "untrained_accuracy": 0.1},
            ["accuracy", "ema_accuracy"],
        ),
        ({"lidar": 3.0, "alpha": 1.0, "untrained_lidar": 2.0}, ["lidar", "alpha"]),
    ],
)
def test_the_headline_is_printed_with_its_variants(result, printed):
    assert describe_results._printed_keys(result) == printed


def test_a_result_names_its_encoder_and_its_images(run, photos, tmp_path, capsys):
    test = images(tmp_path / "test", count=6, seed=1)
    words = ("--labeled", photos, "--test", test, "--per-class", 3, "--no-untrained")
    names = ("knn", "few_labels.linear_1", "svm.voc07")
    evaluated(capsys, run.path, *words, "--protocol", *names)
    for name in names:
        settings = run.result(name)["settings"]
        assert settings["encoder"] == str(run.path)
        assert (settings["data"], settings["test_data"]) == (str(photos), str(test))
        assert (settings["features"], settings["seed"]) == ("backbone", 0)
        assert settings["test"] == 6
    assert run.result("few_labels.linear_1")["settings"]["labels"] == "3 per class"


def test_a_run_can_be_shown_larger_images(run, photos, capsys):
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3", "--image-size", "48")
    found = evaluated(capsys, run.path, *words)
    assert found["knn"]["settings"]["view"] == "48 px of 48"


def test_a_network_refuses_an_image_size_that_it_cannot_encode():
    vit = ViT(dim=16, depth=1, heads=2, patch=16, image_size=32)
    check_encodes(EncoderUnderTest("mine", vit, replace(TRANSFORM, size=48, resize=48)))
    with pytest.raises(UserError, match=r"--image-size 40 does not fit mine\..*patches of 16"):
        check_encodes(EncoderUnderTest("mine", vit, replace(TRANSFORM, size=40, resize=40)))


def test_the_transform_has_the_statistics_of_the_training_views(run):
    recipe = load_recipe(run)
    other = tuple(replace(view, mean=(0.3,), std=(0.7,)) for view in recipe.views)
    transform = eval_transform(replace(recipe, views=other))
    assert (transform.mean, transform.std) == ((0.3,), (0.7,))


def test_few_labels_are_sampled_once_and_stored(run, photos, capsys):
    words = (run.path, "--labeled", photos, "--protocol", "few_labels.linear_1", "--per-class", 3)
    words = (*words, "--no-untrained")
    first = evaluated(capsys, *words)
    (file,) = (run.path / "splits").glob("few-*.json")
    assert len(json.loads(file.read_text())["names"]) == 6
    assert first["few_labels.linear_1"]["settings"]["train"] == 6
    assert evaluated(capsys, *words) == first


def test_a_file_of_names_says_which_labels(run, photos, tmp_path, capsys):
    names = sorted(p.name for p in photos.rglob("*.jpg"))
    (tmp_path / "list.txt").write_text("\n".join(names))
    words = ("--labeled", photos, "--protocol", "few_labels.linear_1", "--no-untrained")
    found = evaluated(capsys, run.path, *words, "--split-file", tmp_path / "list.txt")
    assert found["few_labels.linear_1"]["settings"]["train"] == 32  # less those that are scored
    (tmp_path / "list.txt").write_text("nobody.jpg")
    said = fails(capsys, "evaluate", run.path, *words, *CPU, "--split-file", tmp_path / "list.txt")
    assert "nobody.jpg" in said


def test_features_of_the_projector_have_a_file_of_their_own(run, photos, capsys):
    before = run.result("knn")
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3", "--features", "projector")
    found = evaluated(capsys, run.path, *words)
    assert found["knn.projector"]["settings"]["features"] == "projector"
    assert run.result("knn.projector") == found["knn.projector"]
    assert run.result("knn") == before


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Noise of several shapes in classes at random: the neighbors change with any pixel."""
    folder = tmp_path_factory.mktemp("data") / "noise"
    rng = np.random.default_rng(0)
    for i in range(12):
        size = ((97, 140), (180, 120), (64, 64), (41, 130))[i % 4]
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        write(folder / "ab"[rng.integers(2)] / f"{i}.png", pixels)
    return folder


def test_an_encoder_has_one_number_however_it_is_named(run, noise, tmp_path, capsys):
    network = BackboneConfig(name="resnet10_narrow", stem="imagenet").build()
    other = tmp_path / "other.safetensors"
    save_file(network.state_dict(), other)  # sees 224 pixels
    words = ("--labeled", noise, "--protocol", "knn.leave_one_out", "--k", 1, 3, 5, 7, 9)
    words, out = (*words, "--no-untrained"), ("--out", tmp_path / "out")
    encoders = ((run.path,), ("--backbone", run.path, *out), (run.path, "--against", other))
    named = [evaluated(capsys, *encoder, *words)["knn.leave_one_out"] for encoder in encoders]

    def numbers(found):
        return [found[f"accuracy_k{k}"] for k in (1, 3, 5, 7, 9)]

    assert numbers(named[0]) == numbers(named[1]) == numbers(named[2])
    assert named[0]["settings"]["transform"] == named[1]["settings"]["transform"]
    alone = evaluated(capsys, "--backbone", other, *words, *out)["knn.leave_one_out"]
    assert numbers(alone) == numbers(named[2]["against"][str(other)])
    assert numbers(alone) != numbers(named[0])
    transforms = named[2]["against_transforms"]
    assert transforms == {str(other): alone["settings"]["transform"]}


def test_a_run_named_as_a_backbone_is_analyzed_without_labels_too(run, tmp_path, capsys):
    words = ("--backbone", run.path, "--out", tmp_path / "other")
    assert evaluated(capsys, *words) == evaluated(capsys, run.path)
    assert {"seed", "features"} <= set(run.result("label_free")["settings"])
    found, other = (
        evaluated(capsys, *named, "--protocol", "analysis")["analysis"]
        for named in ((run.path,), words)
    )
    assert found == other
    assert found["settings"]["stored_size"] == load_recipe(run).data.store_size
    assert found["effective_rank"] >= 1
    assert "untrained_effective_rank" in found
    assert run.result("analysis")["settings"]["seed"] == 0


def test_another_run_is_compared_with(run, finished, photos, capsys):
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3", "--against", finished.path)
    found = evaluated(capsys, run.path, *words)["knn"]
    assert found["against"][str(finished.path)]["accuracy"] == found["accuracy"]  # its own copy


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights, as an exporter would write it."""
    torch.manual_seed(0)
    network = BackboneConfig(name="resnet10_narrow", stem="imagenet").build()
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(network.state_dict(), file)
    return file


def test_any_encoder_is_measured_without_a_run(weights, photos, tmp_path, capsys):
    out = tmp_path / "theirs"
    words = ("--backbone", weights, "--labeled", photos, "--k", "3", "--image-size", "32")
    found = evaluated(capsys, *words, "--out", out)
    assert Run(out).result("knn") == found["knn"]
    assert found["knn"]["settings"]["view"] == "32 px of 32"
    assert "untrained_accuracy" in found["knn"]
    assert not (out / "recipe.json").exists()


def test_every_weight_of_a_file_is_accounted_for_in_a_file(weights, photos, tmp_path, capsys):
    torch.manual_seed(1)
    network = BackboneConfig(name="resnet10_narrow", stem="imagenet").build()
    kept = {f"right.{k}": v for k, v in network.state_dict().items()}
    kept |= {f"left.{k}": v for k, v in load_file(weights).items()}
    save_file(kept, tmp_path / "two.safetensors")
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3", "--image-size", "32")
    words = ("--backbone", tmp_path / "two.safetensors", *words, "--no-untrained")
    assert "--part left" in fails(capsys, "evaluate", *words, *CPU)
    evaluated(capsys, *words, "--part", "right", "--out", tmp_path / "theirs")
    rows = json.loads((tmp_path / "theirs" / "import.json").read_text())["weights"]
    assert {row["file"] for row in rows} == set(kept)
    assert {row["status"] for row in rows if row["file"].startswith("right.")} == {"renamed"}


class Outside:
    """What only running code can read."""


def test_a_file_with_code_in_it_needs_trust(weights, photos, tmp_path, capsys):
    torch.save({"state_dict": load_file(weights), "args": Outside()}, tmp_path / "code.pth")
    words = ("--backbone", tmp_path / "code.pth", "--labeled", photos, "--protocol", "knn")
    words = (*words, "--k", 3, "--image-size", 32, "--no-untrained", "--out", tmp_path / "theirs")
    assert "add --trust" in fails(capsys, "evaluate", *words, *CPU)
    assert evaluated(capsys, *words, "--trust")["knn"]["settings"]["k"] == [3]


def test_tokens_of_the_last_blocks_have_results_of_their_own(photos, tmp_path, capsys):
    torch.manual_seed(0)
    save_file(ViT(64, 3, 2, patch=8, image_size=32).state_dict(), tmp_path / "vit.safetensors")
    words = ("--backbone", tmp_path / "vit.safetensors", "--labeled", photos, "--k", 3)
    words = (*words, "--protocol", "knn", "--image-size", 32, "--out", tmp_path / "vit")
    plain = evaluated(capsys, *words)["knn"]
    found = evaluated(capsys, *words, "--last-blocks", 2, "--patch-mean")
    assert found["knn.last2_patch_mean"]["settings"]["features"] == "last2_patch_mean"
    assert "untrained_accuracy" in found["knn.last2_patch_mean"]
    one = evaluated(capsys, *words, "--last-blocks", 1)["knn.last1"]
    assert one["accuracy"] == plain["accuracy"]  # the last class token is the network's feature
    assert Run(tmp_path / "vit").result("knn") == plain


def test_a_checkpoint_that_diverged_is_refused_by_name(run, photos, capsys):
    saved = torch.load(run.checkpoints / "last.pt", weights_only=True)
    saved["method"]["student.backbone.layer1.0.conv1.weight"][0] = torch.nan
    checkpoint.save(run, saved)
    (run.checkpoints / "previous.pt").unlink(missing_ok=True)
    said = fails(capsys, "evaluate", run.path, "--labeled", photos, *CPU)
    assert "not finite (method.student.backbone.layer1.0.conv1.weight)" in said


def test_a_network_of_other_images_gets_a_sentence_from_training_too(run, tmp_path, capsys):
    gray = BackboneConfig(name="resnet10_narrow", stem="imagenet", in_channels=1).build()
    save_file(gray.state_dict(), tmp_path / "gray.safetensors")
    photos = images(tmp_path / "color", count=20)
    words = ("--labeled", photos, "--protocol", "linear.moco", "--epochs", 1, "--image-size", 32)
    said = fails(capsys, "evaluate", "--backbone", tmp_path / "gray.safetensors", *words, *CPU)
    assert "cannot encode images of 32 x 32 with 3 channels" in said


def test_a_detector_takes_the_statistics_of_its_network():
    detection = DetectionEvaluator(train=rectangles(4), test=rectangles(4))
    for mean, expected in (((0.3,), (0.3,) * 3), ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3))):
        transform = replace(TRANSFORM, mean=mean, std=mean)
        found = evaluate.with_normalization_of(transform, detection).detector
        assert (found.mean, found.std) == (expected, expected)


def test_a_voc_devkit_gives_trainval_of_all_years_and_the_test_of_one(tmp_path):
    """As voc_c4 is published: trained on trainval07+12, tested on test07."""
    for year, splits in (("VOC2007", ("train", "trainval", "test")), ("VOC2012", ("trainval",))):
        for split in splits:
            voc(tmp_path / year, [("cat", 0)], split)
    year = tmp_path / "VOC2007"
    train, test = ("trainval", "train"), ("test", "val")
    load, find = evaluate.load_detection_split, evaluate.find_voc_folder
    assert load(str(tmp_path), train).name.count("trainval") == 2
    assert load(str(tmp_path), test).name == f"{year} test"
    assert load(str(year), train).name.endswith("val")
    assert find(str(tmp_path)) == find(str(year)) == str(year)
    assert find(str(tmp_path / "VOC2012" / "JPEGImages")) is None


def test_a_detector_is_not_tested_on_its_training_images(run, capsys):
    words = ("--labeled", "pets.parquet", "--protocol", "detection.small_fpn")
    assert "Name the test images with --test" in fails(capsys, "evaluate", run.path, *words, *CPU)


def test_a_result_has_every_k_intervals_pairs_and_classes(run, photos, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "36")  # too narrow for the table of classes
    words = (
        run.path,
        "--labeled",
        photos,
        "--protocol",
        "knn",
        "--k",
        3,
        1,
        200,
        "--by-class",
        *CPU,
    )
    main(["evaluate", *map(str, words)])
    out = capsys.readouterr().out
    printed = " ".join(out.split())
    assert "accuracy_k1 " in printed and "accuracy_k3 " in printed
    assert "accuracy_k200" not in printed and "without k = 200: only 32" in printed
    assert "knn" in [line.strip() for line in out.splitlines()]  # the title of its classes
    found, arrays = run.result("knn"), run.arrays("knn")
    correct, before = arrays["accuracy"]
    assert found["accuracy"] == correct.mean() and found["untrained_accuracy"] == before.mean()
    assert found["accuracy_low"] < found["accuracy"] <= found["accuracy_high"]
    gain = found["differences"]["untrained"]["accuracy"]
    assert gain["difference"] == pytest.approx(correct.mean() - before.mean())
    assert (gain["n"], gain["paired"]) == (8, True) == (found["n"], True)
    assert (arrays["predictions"][0] == arrays["labels"]).tolist() == correct.tolist()
    assert sum(map(sum, found["confusion"])) == 8
    assert [row["n"] for row in found["per_class"].values()] == [4, 4]
    assert "2 classes, 32 training and 8 test images." in printed
    assert f"{found['accuracy']:.1%} (" in printed and "cats images: 4" in printed
    assert "on these 8 images" in printed or "8 images)" in printed


def test_a_result_keeps_its_untrained_row_if_only_the_encoder_is_measured_again(
    run, photos, capsys
):
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3")
    before = evaluated(capsys, run.path, *words)["knn"]
    assert evaluated(capsys, run.path, *words, "--no-untrained")["knn"] == before
    assert run.result("knn") == before
    changed = before | {"settings": before["settings"] | {"note": "in other words"}}
    run.write_result("knn", changed)
    assert evaluated(capsys, run.path, *words, "--no-untrained")["knn"] == before
    assert list(run.arrays("knn")["encoders"]) == ["trained", "untrained"]
    # Of another seed, the split and so the test images are others.
    main(["evaluate", *map(str, (run.path, *words)), *CPU, "--json", "--no-untrained", "--seed=1"])
    printed = capsys.readouterr()
    other = json.loads(printed.out)["knn"]
    assert "untrained_accuracy_k3" not in other and "accuracy_k3" in other
    said = " ".join(printed.err.split())
    assert "but other settings (fingerprint, seed), so its numbers are not kept" in said


def test_a_result_without_its_arrays_does_not_keep_the_untrained_row(run, photos, capsys):
    words = ("--labeled", photos, "--protocol", "knn", "--k", "3")
    evaluated(capsys, run.path, *words)
    next(run.path.rglob("knn*.npz")).unlink()
    again = evaluated(capsys, run.path, *words, "--no-untrained")["knn"]
    assert "untrained_accuracy_k3" not in again and "accuracy_k3" in again


def test_the_map_and_the_neighbors_use_the_features_that_were_measured(
    run, photos, tmp_path, capsys, monkeypatch
):
    before = (run.images / "neighbors.json").read_text()

    def encode_again(*args, **keywords):
        raise AssertionError("the features are computed a second time")

    monkeypatch.setattr(image_sheets, "compute_features", encode_again)
    evaluated(capsys, run.path, "--labeled", photos, "--protocol", "knn", "--k", "3")
    assert json.loads((run.images / "neighbors.json").read_text())["rows"][0]["untrained"]
    test = images(tmp_path / "test", count=6, seed=1)
    evaluated(capsys, run.path, "--labeled", photos, "--protocol", "knn", "--test", test)
    assert len(json.loads(before)["rows"]) == 12
    h = Features(torch.rand(5, 2), None, torch.tensor([8, 1, 4, 2, 7]))
    parts = [Features(h.h[:2], None, h.index[:2]), Features(h.h[2:], None, h.index[2:])]
    found = image_sheets.select_features(parts, torch.tensor([1, 7, 8]))
    assert torch.equal(found.h, h.h[[1, 4, 0]])
    assert image_sheets.select_features(parts, torch.tensor([1, 3])) is None


def test_a_run_keeps_the_results_of_every_data_set(run, photos, tmp_path, capsys):
    other = images(tmp_path / "other" / "photos", count=20, seed=3)  # of the same name
    words = (run.path, "--protocol", "knn", "--k", "3", "--labeled")
    first = evaluated(capsys, *words, photos)["knn"]
    verdict = run.result("verdict")
    second = evaluated(capsys, *words, other)["knn"]
    for found, count in ((first, 40), (second, 20)):
        data = found["settings"]["data_set"]
        assert (data["name"], data["images"]) == ("photos", count)
        assert run.result(f"photos-{data['fingerprint'][:8]}/knn") == found
    with pytest.raises(UserError, match="has knn of 2 data sets"):
        run.result("knn")
    # A copy in another place is the same data set, and another seed splits the same data set.
    shutil.copytree(photos, tmp_path / "copied")
    evaluated(capsys, *words, tmp_path / "copied", "--seed", "1")
    assert len([path for path in run.results.iterdir() if path.is_dir()]) == 2
    (row,), notes, _ = compare([run])
    names = [
        f"knn on photos-{f['settings']['data_set']['fingerprint'][:8]}" for f in (first, second)
    ]
    assert [key for key in row if key.startswith("knn") and key.endswith("k3")] == sorted(
        f"{name} k3" for name in names
    )
    assert notes[0].startswith("Data sets: photos-") and "40 images" in notes[0]
    # The verdict is that of the images the run was trained on, and names the others.
    rows = {line["name"]: line for line in run.result("verdict")["evidence"]}
    assert verdict["verdict"] == run.result("verdict")["verdict"]
    assert "not counted" in rows[f"kNN accuracy on {names[1].removeprefix('knn on ')}"]["meaning"]
    page = run.report.read_text()
    assert all(f"on {name.removeprefix('knn on ')}" in page for name in names)


def test_one_table_over_all_runs_with_empty_cells(run, finished, photos, tmp_path, capsys):
    evaluated(capsys, run.path, "--labeled", photos, "--protocol", "linear", "--no-untrained")
    other = tmp_path / "other"
    settings = {"test": 9, "data_set": run.result("linear")["settings"]["data_set"]}
    knn = {"accuracy": 0.5, "accuracy_k20": 0.5, "settings": settings}
    Run(other).write_result("photos/knn", knn)
    kept = sorted(p for p in tmp_path.rglob("*"))
    rows = api.compare([run.path, other], quiet=True)
    assert [row["run"] for row in rows] == ["mine", "other"]
    assert rows[0]["linear"] == run.result("linear")["accuracy"]
    assert rows[1]["linear"] is None and rows[1]["knn k20"] == 0.5
    main(["evaluate", str(run.path), str(other), "--compare"])
    table = capsys.readouterr().out
    assert "linear" in table and "50.0%" in table
    assert sorted(p for p in tmp_path.rglob("*")) == kept


def test_protocols_are_listed_with_source_and_settings(capsys):
    main(["evaluate", "--protocols", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"knn", "linear.mocov3_vit", "few_labels.swav_10", "fine_tune.cifar10"} <= set(rows)
    assert "arXiv:2104.02057" in rows["linear.mocov3_vit"]["source"]
    assert "head lr 3 x batch/256" in rows["linear.mocov3_vit"]["settings"]
    main(["evaluate", "--protocols"])
    assert "linear.moco" in capsys.readouterr().out


MISTAKES = {
    "a setting twice": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "linear.sgd", "--epochs=3", "--set.epochs=1"],
        "--epochs and --set.epochs are the same setting",
    ),
    "nothing to measure": ([], "one or more run folders"),
    "unknown protocol": (["RUN", "--protocol", "linaer.moco"], 'Did you mean "linear.moco"'),
    "labels lacking": (["RUN", "--protocol", "linear.moco"], "linear.moco needs --labeled"),
    "classes of nothing": (["RUN", "--by-class"], "--by-class needs --labeled"),
    "test without train": (["RUN", "--test", "x"], "--test needs --labeled"),
    "unknown features": (["RUN", "--labeled", "PHOTOS", "--features", "projektor"], "projector"),
    "a setting of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--head.lr", "1"],
        "setting of other protocols than knn, linear",
    ),
    "few labels of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "knn", "--share", "0.5"],
        "--share, --per-class or --split-file is a setting",
    ),
    "iterations of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--iterations", "5"],
        "--iterations is a setting",
    ),
    "epochs of nothing": (["RUN", "--labeled", "PHOTOS", "--epochs", "5"], "--epochs is a setting"),
    "no such list": (
        [
            *("RUN", "--labeled", "PHOTOS", "--protocol", "few_labels.linear_1"),
            *("--split-file", "none.txt"),
        ],
        "No such file or directory. Give a text file",
    ),
    "unknown setting": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "linear.moco", "--head.rate", "1"],
        "head.rate",
    ),
    "misspelled word": (["RUN", "--labled", "PHOTOS"], "--labeled"),
    "two amounts": (
        ["RUN", "--labeled", "PHOTOS", "--share", "0.1", "--per-class", "2"],
        "(--share), a number per class (--per-class) and a file",
    ),
    "blocks of a ResNet": (
        ["RUN", "--labeled", "PHOTOS", "--last-blocks", "2"],
        "a ResNet has none",
    ),
    "blocks that are trained": (
        ["RUN", "--labeled", "PHOTOS", "--last-blocks", "2", "--protocol", "fine_tune.pets"],
        "frozen features",
    ),
    "blocks of the projector": (
        ["RUN", "--labeled", "PHOTOS", "--last-blocks", "2", "--features", "projector"],
        "Leave --features out",
    ),
    "patches without blocks": (["RUN", "--labeled", "PHOTOS", "--patch-mean"], "--last-blocks"),
    "blocks without labels": (["RUN", "--last-blocks", "2"], "--last-blocks needs --labeled"),
    "a stem of a run": (["RUN", "--labeled", "PHOTOS", "--stem", "half"], "states its own"),
    "unknown backbone": (["--backbone", "no/such/file.pth", "--labeled", "PHOTOS"], "file"),
    "projector of a file": (
        ["--backbone", "WEIGHTS", "--labeled", "PHOTOS", "--features", "projector"],
        "needs a run folder",
    ),
    "too few for a share": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "few_labels.linear_1"],
        "less than one for each of 2 classes",
    ),
    "tested on training images": (
        ["RUN", "--labeled", "PHOTOS", "--test", "PHOTOS", "--protocol", "knn"],
        "Every one of the 40 test images is a training image too",
    ),
    "one class": (
        ["RUN", "--labeled", "PHOTOS", "--classes", "cats", "--protocol", "knn"],
        'All training images are of one class, "cats"',
    ),
    "a size of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "detection.voc_c4", "--image-size", "32"],
        "--image-size has no effect on detection.voc_c4",
    ),
    "a folder for the results of a run": (
        ["RUN", "--labeled", "PHOTOS", "--out", "elsewhere"],
        "--out is for --backbone",
    ),
    "a part of a run": (
        ["RUN", "--labeled", "PHOTOS", "--part", "left"],
        "--part is for --backbone",
    ),
    "a size of no images": (["RUN", "--image-size", "32"], "--image-size needs --labeled"),
    "a size of views": (
        ["RUN", "--protocol", "analysis", "--image-size", "32"],
        "--image-size has no effect on analysis",
    ),
    "neighbors of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "linear", "--k", "5"],
        "--k is a setting of other protocols than linear",
    ),
    "votes of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "retrieval", "--temperature", "0.1"],
        "--temperature is a setting of other protocols than retrieval",
    ),
    "a batch of nothing": (
        ["RUN", "--labeled", "PHOTOS", "--protocol", "knn", "--batch-size", "8"],
        "--batch-size is a setting of other protocols than knn",
    ),
    "a class that is not there": (
        ["RUN", "--labeled", "PHOTOS", "--classes", "cats", "dgos"],
        'has no class "dgos". Did you mean "dogs"?',
    ),
    "a size that the network does not take": (
        ["RUN", "--labeled", "PHOTOS", "--image-size", "0"],
        "image_size is 0",
    ),
    "a column of a folder": (
        ["RUN", "--labeled", "PHOTOS", "--label-column", "label"],
        "has no columns",
    ),
    "nothing to compare": (["PHOTOS", "--compare"], "has no results"),
    "no neighbors": (["RUN", "--labeled", "PHOTOS", "--k", "0"], "k is 0;"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_gets_a_sentence(case, finished, photos, weights, capsys):
    words, expected = MISTAKES[case]
    there = {"RUN": finished.path, "PHOTOS": photos, "WEIGHTS": weights}
    said = fails(capsys, "evaluate", *(there.get(w, w) for w in words), *CPU)
    assert expected in said


def test_a_mistake_in_the_last_protocol_is_told_before_the_first_is_scored(run, photos, capsys):
    both = ["--protocol", "knn", "few_labels.linear_1"]
    said = fails(capsys, "evaluate", run.path, "--labeled", photos, *both, *CPU)
    assert "less than one for each of 2 classes" in said
    assert not list(run.results.rglob("knn.json"))


def resized(run, folder, *, size=None, tile=None):
    """A copy of a run whose recipe has other views or tiles."""
    path = shutil.copytree(run.path, folder) / "recipe.json"
    recipe = json.loads(path.read_text())
    recipe["data"]["tile"] = tile
    for view in recipe["views"]:
        view["size"] = size or view["size"]
    path.write_text(json.dumps(recipe))
    return folder


def test_images_of_a_run_that_were_moved_are_said_to_be_its_own(run, tmp_path, capsys):
    path = resized(run, tmp_path / "moved") / "recipe.json"
    recipe = json.loads(path.read_text())
    recipe["data"]["path"] = str(tmp_path / "nowhere")
    path.write_text(json.dumps(recipe))
    said = fails(capsys, "evaluate", path.parent, "--protocol", "analysis", *CPU)
    assert "was trained on cannot be opened. There is no file" in said and "--labeled DATA" in said


def test_a_run_on_tiles_is_compared_on_its_own_tiles_only(run, photos, tmp_path, capsys):
    tiled = resized(run, tmp_path / "tiled", tile=8)
    words = ("--labeled", photos, "--test", photos, "--protocol", "knn", "--k", 1)
    said = fails(capsys, "evaluate", run.path, "--against", tiled, *words, *CPU)
    assert "trained on tiles of 8 px, but --against would measure it on whole images" in said


def write_lists(path, seed):
    """Noise, colored by each of the classes that an image has."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(12):
        tags = [name for bit, name in enumerate(("red", "green")) if (i + seed) >> bit & 1]
        x = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
        for name in tags:
            x[..., ("red", "green").index(name)] += 150
        rows.append({"image": {"bytes": png(x), "path": f"{i}.png"}, "tags": tags, "one": i % 2})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_lists_of_classes_in_parquet_are_scored_as_several_labels(run, tmp_path, capsys):
    train, test = (write_lists(tmp_path / f"{seed}.parquet", seed) for seed in (0, 1))
    words = ("--labeled", train, "--test", test, "--no-untrained", "--label-column")
    found = evaluated(capsys, run.path, *words, "tags", "--protocol", "svm")["svm"]
    assert found["classes"] == 2 and {"ap_red", "ap_green"} <= set(found)
    assert found["settings"]["num_classes"] == 2 and found["settings"]["train"] == 12
    assert found["settings"]["label_column"] == "tags"
    said = fails(capsys, "evaluate", run.path, *words, "tags", *CPU)
    assert 'several classes per image in its column "tags", and knn needs one' in said
    words = ("--labeled", train, "--label-column", "tags", "--protocol", "svm")
    assert "Name the test images with --test" in fails(capsys, "evaluate", run.path, *words, *CPU)


def test_several_labels_have_one_number_for_an_encoder_of_another_size(
    run, tmp_path, monkeypatch, capsys
):
    def score_features(svm, backbone):  # in place of fitting SVMs
        return {"map": svm.data.features(backbone)[1].h.double().sum().item()}

    monkeypatch.setattr(SVM, "__call__", score_features)
    train, test = (write_lists(tmp_path / f"{seed}.parquet", seed) for seed in (0, 1))
    words = ("--labeled", train, "--test", test, "--no-untrained", "--label-column", "tags")
    words, other = (*words, "--protocol", "svm"), resized(run, tmp_path / "other", size=8)
    alone = evaluated(capsys, other, *words)["svm"]
    found = evaluated(capsys, run.path, *words, "--against", other)["svm"]
    assert found["against"][str(other)]["map"] == alone["map"] != found["map"]


def test_a_class_that_training_lacks_is_named(run, photos, tmp_path, capsys):
    other = images(tmp_path / "other", count=6, classes=("cats", "emus"))
    said = fails(capsys, "evaluate", run.path, "--labeled", photos, "--test", other, *CPU)
    assert '"emus"' in said


def measured(folder):
    """Results of some protocols, each process having its share of the work."""
    encoders = [EncoderUnderTest(name, Means(), TRANSFORM) for name in ("this", "untrained")]
    names = ("knn", "linear", "few_labels.linear_10")
    return score_labeled(Run(folder), encoders, bright(120), None, names=names)


def test_two_processes_write_what_one_does(two_processes, tmp_path):
    expected = measured(tmp_path / "one")
    assert two_processes(measured, tmp_path / "two") == [expected, expected]
    assert Run(tmp_path / "two").all_results() == expected


def test_evaluate_uses_the_classes_in_the_recipe_of_the_run(run, tmp_path, capsys):
    recipe = json.loads(run.recipe_path.read_text())
    recipe["data"]["classes"] = ["cats", "dogs"]
    run.recipe_path.write_text(json.dumps(recipe))
    labeled = images(tmp_path / "three", count=30, classes=("cats", "cows", "dogs"))
    shared = ("--labeled", labeled, "--protocol", "knn", "--k", "1", "--no-untrained")
    for more, count in (((), 20), (("--classes", "all"), 30), (("--classes", "cows", "cats"), 20)):
        settings = evaluated(capsys, run.path, *shared, *more)["knn"]["settings"]
        assert settings["train"] + settings["test"] == count
        assert settings.get("classes", []) == (list(more[1:]) or ["cats", "dogs"])
