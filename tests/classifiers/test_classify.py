"""Classify: the head against scikit-learn, honest measures, the file, and the CSV."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import nn

import selfsight
from selfsight.classifiers import fit_classifier, predictions_csv
from selfsight.classifiers.classifier_file import read_classifier, save_classifier
from selfsight.classifiers.describe_classifier import describe_measures
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.evals.extract_features import Features
from tests.exporters.saved_run import save_run

COLORS = {"=red": (200, 40, 40), "Green": (40, 200, 40), "3": (60, 60, 190)}


def save_images(folder, count, seed=0):
    """Noisy images of three colors, which any network tells apart often."""
    rng = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(rng.normal(color, 90, (36, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    save_run(home / "mine", name="resnet8_narrow", image_size=32)
    save_images(home / "labeled", 4)
    save_images(home / "test", 3, seed=1)
    (home / "new").mkdir()
    for i, path in enumerate(sorted((home / "test").rglob("*.png"))):
        (home / "new" / f"{i}.png").write_bytes(path.read_bytes())
    (home / "new" / "=1+1.png").write_bytes((home / "new" / "0.png").read_bytes())
    (home / "new" / "broken.png").write_text("no image")
    return home


@pytest.fixture(scope="module")
def trained(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_classifier, "WEIGHT_DECAYS", (1.0, 0.1))  # which are solved at once
        return selfsight.classify(home / "mine", labeled=home / "labeled", device="cpu", quiet=True)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_head_is_that_of_scikit_learn(home, trained):
    files = sorted((home / "labeled").rglob("*.png"))
    h = selfsight.load(home / "mine").encode(files).double().numpy()
    y = np.array([sorted(COLORS).index(file.parent.name) for file in files])
    assert trained["classifier"]["class_names"] == sorted(COLORS)
    x = (h - h.mean(axis=0)) / h.std(axis=0)
    measured = trained["classifier"]["measured"]
    model = LogisticRegression(C=1 / (measured["weight_decay"] * len(y)), tol=1e-8, max_iter=10000)
    expected = model.fit(x, y).decision_function(x) / measured["temperature"]
    expected = torch.from_numpy(expected).softmax(dim=1)
    found = selfsight.load_classifier(home / "mine").probabilities(files)
    torch.testing.assert_close(found.double(), expected, atol=5e-3, rtol=0)


@pytest.mark.slow
def test_a_head_that_learns_noise_by_heart_is_not_said_to_be_good():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(45) % 3
    train = Features(torch.randn(45, 60, generator=g), y, torch.arange(45))
    head, _, choice = fit_classifier.select_head(train, 3, seed=0)
    assert (head(train.h).argmax(dim=1) == y).float().mean() > 0.95
    held_out = choice.held_out
    assert (held_out.logits.argmax(dim=1) == held_out.y).float().mean() < 0.5
    confidence = (held_out.calibrated.softmax(dim=1)).max(dim=1).values
    assert confidence.mean() < 0.45  # the temperature says that it knows nothing


def test_the_csv_has_a_row_for_each_image_and_no_formula(home, trained):
    out = home / "new.csv"
    found = selfsight.classify(
        home / "mine", predict=home / "new", out=out, top_k=3, device="cpu", quiet=True
    )["predicted"]
    rows = read(out)
    assert list(rows[0]) == [
        "path", "label", "confidence", "label_2", "confidence_2", "label_3", "confidence_3", "error"
    ]  # fmt: skip
    assert len(rows) == found["images"] == 11 and found["predicted"] == 10
    cells = [cell for row in csv.reader(out.read_text().splitlines()) for cell in row]
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@\t\r")]
    (broken,) = (row for row in rows if row["error"])
    assert (broken["path"], broken["label"], broken["confidence"]) == ("broken.png", "", "")
    assert "image" in broken["error"]
    classifier = selfsight.load_classifier(home / "mine")
    good = [row for row in rows if not row["error"]]
    assert "./=1+1.png" in [row["path"] for row in good]  # a path that still names the file
    predictions = classifier.classify([home / "new" / row["path"] for row in good], top_k=3)
    for row, prediction in zip(good, predictions, strict=True):
        assert row["label"].removeprefix("'") == prediction.label
        assert float(row["confidence"]) == pytest.approx(prediction.confidence, abs=1e-5)
        assert row["label_3"].removeprefix("'") == prediction.ranking[2][0]
    assert {"'=red", "Green", "3"} == {row["label"] for row in rows} - {""}


@pytest.mark.parametrize("text", ["=1", "+a", "-a", "@a", "\t=1", " =1", "\r=1", "＝1"])  # noqa: RUF001
def test_what_a_spreadsheet_takes_for_a_formula_is_guarded(text):
    assert predictions_csv.guard_text(text) == f"'{text}"
    assert predictions_csv.guard_path(text) == f"./{text}"
    assert predictions_csv.guard_text("-12.5") == "-12.5"
    assert predictions_csv.guard_path("a=1/-2.png") == "a=1/-2.png"


def test_an_interruption_leaves_the_earlier_file(home, trained, monkeypatch, tmp_path):
    out = tmp_path / "p.csv"
    out.write_text("earlier")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    options = {"predict": home / "new", "out": out, "device": "cpu", "quiet": True}
    with pytest.raises(UserError, match="holds predictions already"):
        selfsight.classify(home / "mine", **options)
    monkeypatch.setattr(predictions_csv, "rank_classes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        selfsight.classify(home / "mine", **options, overwrite=True)
    assert out.read_text() == "earlier"


def test_a_damaged_file_and_another_encoder_are_refused(home, trained, tmp_path):
    content = bytearray((home / "mine/classifiers/labeled.safetensors").read_bytes())
    content[-3] ^= 1
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content)
    with pytest.raises(UserError, match="damaged: its checksum"):
        selfsight.load_classifier(home / "mine", damaged)
    damaged.write_bytes(content[:100])
    with pytest.raises(UserError, match="cannot be read"):
        selfsight.load_classifier(home / "mine", damaged)
    other = save_run(tmp_path / "other", name="resnet10_narrow", image_size=32)
    with pytest.raises(UserError, match="trained on another encoder"):
        selfsight.load_classifier(other, home / "mine/classifiers/labeled.safetensors")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"measured": {"n": "many"}}, "has no measured|measured.n"),
        ({"class_names": ["a", "b"]}, "does not fit its classes"),
        ({"transform": {"size": -1}}, "size is -1"),
        ({"encoder": {"name": "x"}}, "has no encoder.weights"),
    ],
)
def test_a_file_of_a_stranger_is_checked_field_by_field(home, trained, change, sentence, tmp_path):
    saved = read_classifier(home / "mine/classifiers/labeled.safetensors")
    about, transform = saved.about | change, saved.transform
    if "transform" in change:
        transform = replace(transform)
        object.__setattr__(transform, "size", -1)
    save_classifier(tmp_path / "other.safetensors", saved.head, None, transform, about)
    with pytest.raises(UserError, match=sentence):
        read_classifier(tmp_path / "other.safetensors")


def test_a_head_that_does_not_fit_is_refused(home, trained, tmp_path):
    saved = read_classifier(home / "mine/classifiers/labeled.safetensors")
    file, classes, width = tmp_path / "other.safetensors", *saved.head.weight.shape
    for shape in ((classes + 1, width), (classes,), ()):
        head = nn.Linear(width, classes)
        head.weight = nn.Parameter(torch.zeros(shape))
        save_classifier(file, head, None, saved.transform, saved.about)
        with pytest.raises(UserError, match="its head does not fit its classes"):
            read_classifier(file)
    save_classifier(file, nn.Linear(width + 1, classes), None, saved.transform, saved.about)
    with pytest.raises(UserError, match=f"head is for {width + 1} features"):
        selfsight.load_classifier(home / "mine", file)


@pytest.mark.slow
def test_a_test_set_measures_the_classifier_that_is_saved(home, tmp_path):
    file = tmp_path / "tested"
    found = selfsight.classify(
        home / "mine",
        labeled=home / "labeled",
        test=home / "test",
        classifier=file,
        device="cpu",
        quiet=True,
    )["classifier"]
    files = sorted((home / "test").rglob("*.png"))
    predictions = selfsight.load_classifier(home / "mine", file).classify(files)
    correct = [p.label == f.parent.name for p, f in zip(predictions, files, strict=True)]
    assert found["measured"]["accuracy"] == pytest.approx(np.mean(correct))
    names, confusion = sorted(COLORS), np.zeros((3, 3), int)
    for prediction, path in zip(predictions, files, strict=True):
        confusion[names.index(path.parent.name), names.index(prediction.label)] += 1
    assert found["measured"]["confusion"] == confusion.tolist()
    assert json.loads(file.with_suffix(".json").read_text())["measured"] == found["measured"]
    found["measured"]["per_class"]["Green"]["accuracy"] = 0.0  # so that it is named
    (named,) = [line for line in describe_measures(found) if line.startswith("Balanced accuracy")]
    assert 'worst "Green" 0.0%' in named


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_or_two_images_of_a_class_train_and_say_how_little_it_is(home, count, tmp_path, capsys):
    save_images(tmp_path / "few", count)
    options = ["--classifier", str(tmp_path / "few"), "--device", "cpu", "--predict"]
    options += [str(home / "new"), "--out", str(tmp_path / "few.csv")]
    main(["classify", str(home / "mine"), "--labeled", str(tmp_path / "few"), *options])
    said = " ".join(capsys.readouterr().out.split())
    assert f"{3 * count} labeled images of 3 classes, {count} of each: these are few" in said
    assert ("The accuracy is not known" in said) == (count == 1)
    assert len(read(tmp_path / "few.csv")) == 11


def test_what_cannot_be_classified_is_a_sentence(home, trained, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = home / "mine"
    image = (home / "new/0.png").read_bytes()
    pq.write_table(
        pa.table({"image": [image] * 4, "labels": [["a"], ["a", "b"], ["b"], []]}),
        tmp_path / "several.parquet",
    )
    for name in ("one/a", "more/=red", "more/blue"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0.png").write_bytes(image)
    refused = {
        "Give --labeled FOLDER": {},
        "no sub-folders with images": {"labeled": home / "new"},
        "of one class, \"a\"": {"labeled": tmp_path / "one"},
        "have several classes each": {"labeled": tmp_path / "several.parquet"},
        "a class \"blue\" that the training images lack": {
            "labeled": home / "labeled", "test": tmp_path / "more", "overwrite": True
        },
        "--epochs needs --fine-tune": {"labeled": home / "labeled", "epochs": 3},
        "--out needs --predict": {"labeled": home / "labeled", "out": "x.csv"},
        "top_k is 4, and there are 3 classes": {
            "predict": home / "new", "top_k": 4, "out": tmp_path / "x.csv"
        },
        "is a folder. Give the name of a file": {
            "predict": home / "new", "out": tmp_path, "overwrite": True
        },
        'classifier is "."': {"predict": home / "new", "classifier": "."},
        "There is no classifier": {"predict": home / "new", "classifier": "labled"},
        "trained without --image-size": {"predict": home / "new", "image_size": 40},
    }  # fmt: skip
    for sentence, options in refused.items():
        with pytest.raises(UserError, match=sentence):
            selfsight.classify(run, **options, device="cpu", quiet=True)
    with pytest.raises(UserError, match="Give a run folder or --backbone"):
        selfsight.classify(predict=home / "new")


@pytest.mark.slow
def test_a_fine_tuned_classifier_is_loaded_with_its_network(home, tmp_path):
    before = selfsight.load(home / "mine").state_dict()
    found = selfsight.classify(
        home / "mine",
        labeled=home / "labeled",
        fine_tune=True,
        epochs=2,
        classifier=tmp_path / "tuned",
        predict=home / "new",
        out=tmp_path / "tuned.csv",
        device="cpu",
        quiet=True,
    )
    assert found["classifier"]["measured"]["n"] == 3  # a fifth of 12, one of each class
    again = selfsight.load_classifier(home / "mine", tmp_path / "tuned")
    after = again.encoder.backbone.state_dict()
    assert not torch.equal(after["conv1.weight"], before["backbone.conv1.weight"])
    good = [row for row in read(tmp_path / "tuned.csv") if not row["error"]]
    for row in good:
        prediction = again.classify(home / "new" / row["path"])
        assert float(row["confidence"]) == pytest.approx(prediction.confidence, abs=1e-5)
    now = selfsight.load(home / "mine").state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())


@pytest.mark.slow
def test_tar_and_parquet_are_predicted_as_the_folder_is(home, trained, tmp_path):
    import tarfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((home / "new").glob("?.png"))
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        for file in files:
            archive.add(file, file.name)
    pq.write_table(pa.table({"image": [f.read_bytes() for f in files]}), tmp_path / "new.parquet")
    confidences = []
    for data in (home / "new", tmp_path / "new.tar", tmp_path / "new.parquet"):
        out = tmp_path / f"{data.name}.csv"
        selfsight.classify(home / "mine", predict=data, out=out, device="cpu", quiet=True)
        rows = [row for row in read(out) if not row["error"] and "=1" not in row["path"]]
        confidences.append([(row["label"], row["confidence"]) for row in rows])
    assert len(confidences[0]) == 9 and confidences[0] == confidences[1] == confidences[2]
