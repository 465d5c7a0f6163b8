"""The command line: commands, their output and their errors."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jaxtyping
import pytest
import torch

from selfsight import api
from selfsight.cli.main import main
from selfsight.cli.split_settings import split_settings
from selfsight.encoders.load_run_networks import RunCheckpoint
from selfsight.errors import DivergedError, UserError
from selfsight.exporters.model_card import describe_origin
from selfsight.methods import METHODS
from selfsight.options.bench_options import BenchOptions
from selfsight.options.eval_options import EvalOptions
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.report_page import feature_figures
from selfsight.run_files.run_folder import Run
from selfsight.runs.verdict import judge
from tests.folders import QUICK, images


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs with everything chosen automatically but its length, and what it said.

    Two of its images cannot be read.
    """
    folder = images(tmp_path_factory.mktemp("data") / "photos")
    (folder / "cats/broken.jpg").write_bytes(b"not an image")
    (folder / "cats/phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(64))
    out, said = tmp_path_factory.mktemp("runs") / "mine", io.StringIO()
    with contextlib.redirect_stderr(said):
        main(["pretrain", str(folder), *QUICK, "--out", str(out)])
    return Run(out), said.getvalue()


@pytest.fixture(scope="module")
def finished(trained):
    return trained[0]


def fails(capsys, *words, code=2):
    """The sentence that a mistake gets, without a traceback."""
    with pytest.raises(SystemExit) as stop:
        main([str(w) for w in words])
    assert stop.value.code == code
    said = capsys.readouterr().err.rstrip("\n")
    assert "Traceback" not in said and "╭" not in said
    return said


def test_help_needs_no_torch_and_less_than_a_second():
    code = "import sys; from selfsight.cli.main import main; main(['pretrain', '--help'])"
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = os.times().children_user - before.children_user  # other programs take none of them
    assert "DATA" in done.stdout
    assert not any(line.rstrip().endswith("| torch") for line in done.stderr.splitlines())
    assert seconds < 1


def test_a_run_folder_has_all_its_files(finished):
    recipe = json.loads(finished.recipe_path.read_text())
    assert recipe["method"]["name"] in METHODS
    assert recipe["reasons"]["method"]
    assert (recipe["backbone"]["name"], recipe["backbone"]["stem"]) == ("resnet8_narrow", "half")
    assert (finished.checkpoints / "last.pt").exists()
    assert finished.report.exists()
    steps = [record["step"] for record in finished.records()]
    assert steps == list(range(1, 7))
    for name in ("loss", "lr", "images_per_second", "data_wait", "feature_std", "effective_rank"):
        assert isinstance(finished.records()[-1][name], float), name
    verdict = finished.result("verdict")
    assert verdict["verdict"] in ("learning", "collapsed", "unclear") and verdict["sentence"]
    assert set(finished.result("label_free")) >= {"retrieval", "effective_rank", "alignment"}


def test_evaluate_without_labels_compares_with_the_untrained_network_and_tells_runs_apart(
    finished, tmp_path, capsys
):
    main(["evaluate", str(finished.path), "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    intervals = {f"{name}_{end}" for name in ("trained", "untrained") for end in ("low", "high")}
    assert set(found["retrieval"]) == {"trained", "untrained", "difference"} | intervals
    other = shutil.copytree(finished.path, tmp_path / "other")
    main(["evaluate", str(finished.path), str(other), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert lines.index(str(finished.path)) < lines.index(str(other))
    text = " ".join(lines[lines.index("same-image retrieval") :])  # too wide for a line
    for name in ("trained", "untrained"):
        assert f" {name}: {found['retrieval'][name]:.1%} (" in text


def test_evaluate_with_labels_writes_knn_and_linear(finished, photos, capsys):
    main(["evaluate", str(finished.path), "--labeled", str(photos), "--k", "3", "--device", "cpu"])
    assert "untrained" in capsys.readouterr().out
    for name in ("knn", "linear"):
        result = finished.result(name)
        assert result["settings"]["train"] + result["settings"]["test"] == 24
        # The classes are two colors, which an untrained network distinguishes as well.
        assert min(result["accuracy"], result["untrained_accuracy"]) >= 0.75


def test_report_and_its_summary(finished, capsys):
    finished.report.unlink()
    main(["report", str(finished.path), "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"]
    assert "<html" in finished.report.read_text()


def test_doctor_summarizes_the_data_and_shows_a_recipe(photos, capsys):
    main(["doctor", str(photos), "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == 24 and found["short_side"] == 32
    assert found["recipe"]["method"]["name"] in METHODS
    main(["doctor", str(photos), "--device", "cpu", "--batch-size", "8"])
    words = capsys.readouterr().out
    assert "24 images" in words and "A step of 8 images needs about" in words


def test_resume_does_not_change_a_finished_run(finished):
    before = (finished.checkpoints / "last.pt").read_bytes()
    main(["resume", str(finished.path), "--device", "cpu"])
    assert (finished.checkpoints / "last.pt").read_bytes() == before
    assert len(finished.records()) == 6


def test_a_folder_with_files_needs_resume_or_overwrite(finished, photos, capsys):
    said = fails(capsys, "pretrain", photos, *QUICK, "--out", finished.path)
    assert "--resume" in said and "--overwrite" in said


def test_overwrite_never_empties_a_folder_without_a_run(tmp_path, photos, capsys):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    said = fails(capsys, "pretrain", photos, *QUICK, "--out", tmp_path, "--overwrite")
    assert "recipe.json" in said
    assert (tmp_path / "thesis.tex").exists()


MISTAKES = {
    "unknown command": (["pretrian", "x"], 'Did you mean "pretrain"'),
    "missing data": (["pretrain", "no/such/folder"], "no file or folder"),
    "a variable of the shell that is unset": (["pretrain", ""], "the data is empty"),
    "no name of a folder": (["pretrain", "PHOTOS", "--out= ", "--sbatch", "x"], "--out is empty"),
    "near miss of a built-in": (["pretrain", "shape"], 'Did you mean "shapes"'),
    "unknown method": (["pretrain", "PHOTOS", "--method", "mocov4"], 'Did you mean "mocov3"'),
    "unknown recipe": (["pretrain", "PHOTOS", "--recipe", "mocov3.cifar"], "Did you mean"),
    "unknown setting": (["pretrain", "PHOTOS", "--optim.lrr", "1"], "optim.lr"),
    "two sources of settings": (
        ["pretrain", "PHOTOS", "--method", "moco", "--recipe", "moco.imagenet_v2_200ep"],
        "not both",
    ),
    "batch too large": (["pretrain", "PHOTOS", "--batch-size", "20"], "two batches of 20 need 40"),
    "bad device": (["pretrain", "PHOTOS", "--device", "tpu"], "auto, cpu or cuda"),
    "warm-up too long": (
        ["pretrain", "PHOTOS", "--epochs", "2", "--optim.schedule.warmup-epochs", "9"],
        "warmup_epochs is 9",
    ),
    "not a run": (["evaluate", "PHOTOS"], "not a run folder"),
    "not a run to resume": (["resume", "PHOTOS"], "not a run folder"),
    "not a run to report": (["report", "PHOTOS"], "not a run folder"),
    "zero epochs": (["pretrain", "PHOTOS", "--epochs", "0"], "1 or more"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_gets_a_sentence_and_status_2(case, photos, tmp_path, capsys):
    words, expected = MISTAKES[case]
    words = [str(photos) if w == "PHOTOS" else w for w in words]
    if words[0] == "pretrain":
        words += [] if "--out= " in words else ["--out", str(tmp_path / "out")]
        words += [] if "--device" in words else ["--device", "cpu"]
    assert expected in fails(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_unreadable_images_are_named_and_skipped(trained):
    run, printed = trained
    said = " ".join(printed.split())
    assert "broken.jpg" in said
    assert "selfsight[heic]" in said
    assert run.saved_recipe()["images"] == 24


OPTIONS = {"pretrain": PretrainOptions, "evaluate": EvalOptions, "bench": BenchOptions}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_has_every_option_once_within_100_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    starts = [re.match(r"\W{1,4}(--[a-z][a-z-]*)", line) for line in lines]  # not within help
    flags = [start[1] for start in starts if start]
    assert len(flags) == len(set(flags))
    names = {field.name for field in fields(OPTIONS[name])} - {"settings", "split_folder"}
    # The command line alone has these; --protocol names protocols, and --protocols lists them.
    names |= {"pretrain": set(), "evaluate": {"protocol", "compare", "json"}, "bench": {"json"}}[
        name
    ]
    assert {f"--{option.replace('_', '-')}" for option in names} == set(flags)


def test_flags_give_the_same_options_as_keywords_in_python(monkeypatch):
    given = []
    monkeypatch.setattr(api, "pretrain", lambda data, options, **_: given.append(options))
    monkeypatch.setattr(api, "evaluate", lambda run, options, quiet: given.append(options))
    main(["pretrain", "x", "--epochs", "3", "--classes", "a.txt", "--labels", "--optim.lr", "1"])
    assert given[0] == PretrainOptions(
        epochs=3, classes="a.txt", labels=True, settings=["--optim.lr", "1"]
    )
    main(["evaluate", "r", "--protocol", "knn", "--k", "3", "--no-untrained", "--head.lr", "1"])
    assert given[1] == EvalOptions(
        protocols=["knn"], k=given[1].k, untrained=False, settings=["--head.lr", "1"]
    )
    assert given[1].neighbor_counts == (3,)


def test_settings_are_split_from_the_options_of_the_command():
    words = ["photos", "--epochs", "3", "--views.0.scale", "0.2", "1.0", "--out", "r", "--compile"]
    assert split_settings(words, ["epochs", "out"]) == (
        ["photos", "--epochs", "3", "--out", "r"],
        ["--views.0.scale", "0.2", "1.0", "--compile"],
    )


def test_settings_may_come_before_data():
    for words in (
        ["--optim.lr", "0.3", "photos"],
        ["--optim.lr=0.3", "photos"],
        ["--views.0.scale", "0.2", "1.0", "photos"],
        ["--no-compile", "photos"],
        ["--method.patches.split", "2", "photos"],
    ):
        assert split_settings(words, ["epochs"]) == (["photos"], words[:-1])
    assert split_settings(["--optim.lr", "0.3", "--", "--photos"], ()) == (
        ["./--photos"],
        ["--optim.lr", "0.3"],
    )


def test_a_class_that_looks_like_a_flag_is_explained_and_can_be_given(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(api, "pretrain", lambda data, options, **_: given.append(options.classes))
    main(["pretrain", "photos", "--classes=--5"])
    assert given == ["--5"]
    assert "write --classes=--5" in fails(capsys, "pretrain", "photos", "--classes", "--5")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--batch-size", "0"], "batch_size is 0; it must be 1 or more"),
        (["--epochs", "-1"], "epochs is -1; it must be 1 or more"),
        (["--method", "moco", "--method.queue-size", "1e12"], 'queue_size is "1e12"; it must be'),
        (["--method", "moco", "--method.queue-size", "1000000000000"], "method.queue_size is 1000"),
        (["--method", "moco", "--method.queue-size", "900000000"], "GiB of memory"),
        (["--out", "/proc/x"], "The folder /proc/x cannot be created: No such file or directory."),
    ],
)
def test_a_setting_that_cannot_work_gets_a_sentence(words, sentence, photos, tmp_path, capsys):
    out = [] if "--out" in words else ["--out", tmp_path / "run"]
    said = fails(capsys, "pretrain", photos, "--device", "cpu", *out, *words)
    assert sentence in said and "bug" not in said
    assert not (tmp_path / "run").exists()


def test_a_setting_of_another_type_is_refused_in_python_too(photos, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match='epochs is "3"; it must be a whole number'):
        api.pretrain(photos, epochs="3")


HOSTILE_CLASSES = ("a\x1b[31mred", "b\nselfsight: done", "c\rd\u202egpj", "[red]")


def test_names_that_a_terminal_would_obey_are_printed_as_escapes(tmp_path, capsys):
    data = images(tmp_path / "in\x1b]0;title\x07" / "[/b]", classes=HOSTILE_CLASSES)
    (data / "[red]/bad\x1b[2J\n.jpg").write_bytes(b"not an image")
    out = tmp_path / "out\u202e\n[/b]"
    main(["pretrain", str(data), *QUICK, "--epochs", "1", "--labels", "--out", str(out)])
    main(["doctor", str(data)])
    main(["evaluate", str(out), "--labeled", str(data), "--protocol", "knn", "--by-class"])
    main(["report", str(out)])
    main(["pretrain", str(data), "--sbatch", str(tmp_path / "job\x1b.sh")])
    texts = list(capsys.readouterr())
    for words in (
        ["pretrain", "--", data / "gone\x1b[2J"],
        ["pretrain", data, "--out", out],
        ["pretrain", data, "second\x1b"],
        ["pretrain", data, "--optim.\x1blr", "3"],
        ["pretrain", data, "--optim.name", "\x1b"],
        ["report", tmp_path / "no\rrun"],
        ["co\x1bmmand"],
    ):
        with pytest.raises(SystemExit):
            main([str(word) for word in words])
        texts.append(capsys.readouterr().err)
    for text in texts:
        assert {c for c in text if not c.isprintable()} == {"\n"}, text
        assert "\nselfsight: done" not in text
    said = "".join("".join(texts).split())
    for name in (r"a\x1b[31mred", r"b\nselfsight:done", r"c\rd\u202egpj", "[red]", r"bad\x1b[2J\n"):
        assert name in said
    assert r"out\u202e\n[/b]/report.html" in said


@pytest.mark.parametrize("words", ["--version", "pretrain --help"])
def test_a_closed_pipe_is_no_traceback(words, monkeypatch):
    """Whether what is printed is short, and written only at the end, or long."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "selfsight", *words.split()]
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


FAILURES = {
    OSError(28, "No space left on device", "a.bin"): "on device (a.bin). The disk is full: free",
    PermissionError(13, "Permission denied", "a.bin"): "Permission denied (a.bin). Check the perm",
    OSError(117, "Structure needs cleaning"): "needs cleaning. Check the file or disk.",
    MemoryError(): "The memory of this machine is not enough. Use --data.storage stream",
    torch.OutOfMemoryError("CUDA out of memory.\nTried"): "The memory of the GPU is not enough.",
    RuntimeError("CPUAllocator: can't allocate memory: you"): "The memory of this machine is not",
    json.JSONDecodeError("Expecting value", "", 0): "A JSON file is damaged: Expecting value",
    torch.distributed.DistBackendError("NCCL"): "connection to another process of this run was",
    RuntimeError("[gloo/pair.cc:1] Connection closed by peer"): "connection to another process of",
    DivergedError("By step 3 loss is no longer finite."): "By step 3 loss is no longer finite.",
    ZeroDivisionError(
        "division by zero"
    ): "This is a bug in selfsight: ZeroDivisionError: division",
}


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_is_one_line_with_what_to_do(error, capsys, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr("selfsight.catalog.list_methods", fail)
    said = fails(capsys, "methods", code=1)
    assert FAILURES[error] in said
    monkeypatch.setenv("SELFSIGHT_TRACEBACK", "1")
    with pytest.raises(type(error)):
        main(["methods"])


def test_a_bug_says_where_it_is_and_where_to_report_it(capsys, monkeypatch):
    monkeypatch.setattr("selfsight.catalog.list_methods", lambda *_: 1 / 0)
    said = fails(capsys, "methods", code=1)
    assert "test_main.py, line" in said and "--verbose" in said
    assert "Report a bug" in said
    assert "\n## Report a bug\n" in (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    "value", [math.nan, 1e999, 10**400, 0.5, "x", [[]]], ids=lambda v: str(v)[:9]
)
def test_a_field_that_nothing_declares_may_hold_anything(tmp_path, value):
    run = Run(tmp_path)
    record = {"step": 1, "epoch": 0.5, "event": "skipped", "loss": value}
    lines = "".join(json.dumps(record | {"step": step}) + "\n" for step in (1, 2))
    run.log_path.write_text(lines)
    run.events_path.write_text(lines)
    run.truncate_log(1)
    assert [r["step"] for r in run.records()] == [e["step"] for e in run.events()] == [1]
    judge(run.records(), {}, {}, run.events())
    similarity = {"edges": value, "counts": [value]}
    feature_figures.features({"backbone": {"similarity": similarity, "eigenvalues": [value]}})


@pytest.mark.parametrize("words", [["--overwrite", " "], ["--optim.nesterov", ""]], ids=str)
def test_an_empty_word_after_a_switch_is_refused_with_its_name(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["pretrain", "photos", *words])
    assert f"{words[0]} is followed by an empty word" in capsys.readouterr().err


def test_damaged_files_of_a_run_are_named(finished, tmp_path, capsys):
    run = Run(shutil.copytree(finished.path, tmp_path / "run"))
    for file in (run.recipe_path, run.log_path, run.results / "verdict.json"):
        good = file.read_bytes()
        for bad in (b"\xff\xfe\n", b"{\n", b"not JSON\n"):
            file.write_bytes(bad)
            said = fails(capsys, "report", run.path)
            assert f"{file}" in said and "is damaged" in said
        file.write_bytes(good)
    verdict = run.results / "verdict.json"
    verdict.write_text('{"sentence": ["a"]}')
    assert f"{verdict} is damaged: sentence is" in fails(capsys, "report", run.path)
    verdict.write_text('{"state": "a"}')  # whoever reads the sentence does without
    assert not any("Verdict" in fact for fact in describe_origin("run", RunCheckpoint(run)))
