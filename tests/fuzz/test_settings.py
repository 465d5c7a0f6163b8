"""One hostile setting at a time, as a flag and in Python: refused by name, or a run that ends."""

import contextlib
import io
import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import pytest
import torch

import selfsight
from selfsight import api
from selfsight.catalog import build_recipe
from selfsight.cli.main import main
from selfsight.errors import RunError, StoppedError, UserError, escape
from selfsight.evals.classifier_settings import ClassifierSettings, Regularization
from selfsight.evals.detection import DetectorSettings
from selfsight.evals.feature_analysis import AnalysisSettings
from selfsight.evals.linear_sgd import SGDGrid
from selfsight.evals.protocols import PROTOCOLS
from selfsight.options.bench_options import BenchOptions
from selfsight.options.encoder_options import (
    AdaptOptions,
    ClassifyOptions,
    EmbedOptions,
    ExploreOptions,
    ExportOptions,
    SearchOptions,
)
from selfsight.options.eval_options import EvalOptions
from selfsight.options.pretrain_options import DoctorOptions, PretrainOptions
from selfsight.options.report_options import ReportOptions
from selfsight.options.study_options import StudyOptions
from selfsight.recipe import ALL_METHODS, Data, Recipe
from selfsight.views import View
from tests.folders import images
from tests.fuzz.cases import (
    SEED,
    STOPPED,
    Outcome,
    assert_none_failed,
    pick_cases,
    run_case,
    stop_after,
)
from tests.methods.small import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

VALUES_EACH = 3  # of each setting
PROGRESS = (" s left", " of them in bench-rows")  # of a request that takes longer than a case may
COUNT = 1000
WORDS = [
    *("0", "-1", "1", "2", "7", "0.5", "3.0", "100000", "1000000000000", "9" * 30, "9" * 5000),
    *("nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "0x10", "1_000", "1,5"),
    *("", " ", "None", "true", "[1, 2]", "{}", "%s", "[/b]", "[bold]", "--5", "-", "\\", "'"),
    *("x" * 5000, "é😀\u202e", "a\nb", "no/such/file", "../..", "/proc/x", "/proc/self/status"),
]
OBJECTS = [
    *(0, -1, 1, 2, 7, 0.5, 3.0, 100_000, 10**12, 10**400, -(10**400), True),
    *(math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 1j, np.float32(1), np.int64(3)),
    *("", "3", "nan", "x" * 100_000, "a\0b", "\ud800", "é😀", "[/b]", "--5", b"3", Path("/proc/x")),
    *(None, [], (), {}, [1] * 10_000, ["a", "a"], (math.nan, math.nan), (0, 0, 0, 0), [[[]]]),
    *(object(), int, len),
]


class Case(NamedTuple):
    how: str  # "flag" or "python"
    of: str  # what the setting belongs to
    setting: str
    value: Any

    def __repr__(self) -> str:
        return f"{self.how} {self.of} {self.setting}={self.value!r:.80}"


def small_recipe(name: str) -> Recipe:
    """Two steps or three of a method on the images of this test."""
    base = build_recipe("simclr.shapes")
    method = ALL_METHODS[name](**SMALL[name])
    view = replace(base.views[0], size=16)
    return Recipe(
        method=method,
        views=method.match_views((view, view)),
        optim=replace(base.optim, schedule=replace(base.optim.schedule, warmup_epochs=0)),
        backbone=replace(base.backbone, name="resnet8_narrow", image_size=16),
        data=Data(store_size=16, labels=True),
        epochs=1,
        batch_size=4,
        compile=False,
    )


def names_of(settings: Any, prefix: str = "") -> list[str]:
    """Every setting with dots, of nested dataclasses too; of the views, those of the first."""
    found = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            found += names_of(value, f"{prefix}{field.name}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], View):
            found += [f"{prefix}{field.name}", *names_of(value[0], f"{prefix}{field.name}.0.")]
        else:
            found.append(prefix + field.name)
    return found


OPTIONS = {  # owner: its settings
    **{name: names_of(small_recipe(name).method, "method.") for name in ALL_METHODS},
    "recipe": [n for n in names_of(small_recipe("simclr")) if not n.startswith("method.")],
    "pretrain": [f.name for f in fields(PretrainOptions)],
    "evaluate": [f.name for f in fields(EvalOptions)],
    "linear.sgd": names_of(SGDGrid()),
    "analysis": names_of(AnalysisSettings()),
    "classifier": names_of(
        next(s.settings for s in PROTOCOLS.values() if isinstance(s.settings, ClassifierSettings))
    ),
    "regularization": names_of(Regularization()),
    "detector": names_of(DetectorSettings()),
    "study": [f.name for f in fields(StudyOptions)],
    "bench": [f.name for f in fields(BenchOptions) if f.name != "growth"],  # takes minutes
    "doctor": ["data", "json", *(f.name for f in fields(DoctorOptions))],
    "embed": [f.name for f in fields(EmbedOptions)],
    "search": [f.name for f in fields(SearchOptions)],
    "explore": [f.name for f in fields(ExploreOptions)],
    "classify": [f.name for f in fields(ClassifyOptions)],
    "export": [f.name for f in fields(ExportOptions)],
    "adapt": [f.name for f in fields(AdaptOptions)],
    "report": [f.name for f in fields(ReportOptions) if f.name != "serve"],  # serves for ever
    "resume": ["run", "device", "trust"],
    "load": ["run", "device"],
}
USED: dict[str, tuple[list[str], dict[str, Any]]] = {  # commands that use a run: words, options
    "embed": (["run", "photos"], {}),
    "search": (["run", "photos"], {"outliers": True}),
    "explore": (["run", "photos"], {}),
    "classify": (["run"], {"labeled": "photos"}),
    "export": (["run"], {"to": "safetensors"}),
    "adapt": (["photos"], {"init": "run"}),
    "report": (["run"], {}),
}
PYTHON_ONLY = {"load", "detector", "regularization", "classifier"}


def all_cases() -> list[Case]:
    """A value for each setting, then another for each, and so on."""
    rng = random.Random(SEED)
    cases = []
    for _ in range(VALUES_EACH):
        for of, names in OPTIONS.items():
            for name in names:
                python = of in PYTHON_ONLY or name in ("settings", "split_folder", "views")
                if python or rng.random() < 0.5:
                    cases.append(Case("python", of, name, rng.choice(OBJECTS)))
                else:
                    cases.append(Case("flag", of, name, rng.choice([*WORDS, ["1"] * 10_000])))
    return cases[:COUNT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, a finished run, and every module imported that a case may need."""
    folder = tmp_path_factory.mktemp("settings")
    images(folder / "photos", count=12, size=(16, 16))
    before = Path.cwd()
    os.chdir(folder)
    jaxtyping.config.update("jaxtyping_disable", True)  # users have no type checks
    recipe = small_recipe("moco")
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        selfsight.pretrain("photos", recipe=recipe, out="run", device="cpu")
        selfsight.evaluate("run", labeled="photos", device="cpu")
        main(["pretrain", "photos", *flags_of("simclr"), "--out", "warm"])
    yield folder
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def flags_of(method: str, /, **changes: str | list[str]) -> list[str]:
    """The command line of `small_recipe`."""
    settings: dict[str, Any] = {"device": "cpu", "method": method, "epochs": 1, "batch-size": 4}
    settings |= {f"method.{k}": v for k, v in SMALL[method].items()}
    settings |= {"backbone.name": "resnet8_narrow", "data.store-size": 16}
    settings |= {"labels": []} if method == "supervised" else {}
    settings |= changes
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool) or (isinstance(value, str) and value in ("True", "False")):
            words.append(f"--{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def run_flag(case: Case) -> None:
    name = case.setting
    value = case.value if isinstance(case.value, list) else [case.value]
    if case.of in (*ALL_METHODS, "recipe", "pretrain"):
        method = case.of if case.of in ALL_METHODS else "simclr"
        given = flags_of(method, **{name.replace("_", "-"): value})
        given += [] if name == "out" else ["--out", "out"]
        given = [w for w in given if w != "--settings"]
        main(["pretrain", "photos", *given])
    elif case.of == "evaluate":
        given = [] if name == "labeled" else ["--labeled", "photos"]
        given += [] if name == "device" else ["--device", "cpu"]
        flag = {"protocols": "protocol"}.get(name, name).replace("_", "-")
        main(["evaluate", "run", *given, f"--{flag}", *value])
    elif case.of in ("linear.sgd", "analysis"):
        labeled = ["--labeled", "photos"] if case.of == "linear.sgd" else []
        flag = f"--set.{name.replace('_', '-')}"
        epochs = ["--epochs", "1"] if name != "epochs" and labeled else []
        words = ["--protocol", case.of, *labeled, "--device", "cpu", *epochs, flag, *value]
        main(["evaluate", "run", *words])
    elif case.of in USED:
        words, options = USED[case.of]
        options = ({} if case.of in ("export", "report") else {"device": "cpu"}) | options
        options = {k: [] if v is True else [v] for k, v in options.items()} | {name: value}
        flags = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", *v)]
        main([case.of, *words, *flags])
    elif case.of == "doctor":
        words = {"data": "photos", "device": "cpu"}
        given = [] if name == "data" else [f"--{name.replace('_', '-')}", *value]
        main(["doctor", *(value if name == "data" else [words["data"]]), *given])
    elif case.of == "resume":
        given = [] if name == "run" else [f"--{name}", *value]
        main(["resume", *(value if name == "run" else ["run"]), *given])
    elif case.of == "study":
        given = ["--device", "cpu"] if name != "device" else []
        main(["study", "methods", "--quick", *given, f"--{name.replace('_', '-')}", *value])
    else:
        given = ["--device", "cpu"] if name != "device" else []
        given += ["--seconds", "0.01"] if name != "seconds" else []
        main(["bench", *given, f"--{name.replace('_', '-')}", *value])


def run_python(case: Case) -> None:
    calls: dict[str, Callable[[dict[str, Any]], Any]] = {
        "pretrain": lambda kw: selfsight.pretrain(
            "photos", **{"recipe": small_recipe("simclr"), "device": "cpu", "out": "out"} | kw
        ),
        "evaluate": lambda kw: selfsight.evaluate(
            "run", **{"labeled": "photos", "device": "cpu"} | kw
        ),
        "doctor": lambda kw: api.doctor(kw.pop("data", "photos"), **{"device": "cpu"} | kw),
        "resume": lambda kw: selfsight.resume(kw.pop("run", "run"), **kw),
        "load": lambda kw: selfsight.load(kw.pop("run", "run"), **kw),
        "linear.sgd": lambda kw: SGDGrid(**kw),
        "analysis": lambda kw: AnalysisSettings(**kw),
        "regularization": lambda kw: Regularization(**kw),
        "detector": lambda kw: DetectorSettings(**kw),
        "study": lambda kw: StudyOptions(**kw),
        "bench": lambda kw: BenchOptions(**kw),
    }
    try:
        if case.of == "classifier":
            changed(PROTOCOLS["linear.moco"].settings, case.setting.split("."), case.value)
        elif case.of in calls:
            value = {"json": "quiet"}.get(case.setting, case.setting)
            calls[case.of]({value: case.value})
        elif case.of in USED:
            words, options = USED[case.of]
            options = ({} if case.of in ("export", "report") else {"device": "cpu"}) | options
            getattr(selfsight, case.of)(*words, **options | {case.setting: case.value})
        else:
            recipe = small_recipe(case.of if case.of in ALL_METHODS else "simclr")
            recipe = changed(recipe, case.setting.split("."), case.value)
            selfsight.pretrain("photos", recipe=recipe, device="cpu", out="out")
    except UserError as error:
        print(f"refused: {error}")
        raise SystemExit(2) from None
    except (RunError, OSError) as error:
        print(f"selfsight: {error}")
        raise SystemExit(1) from None
    except StoppedError:
        raise SystemExit(STOPPED) from None


def changed(settings: Any, path: list[str], value: Any) -> Any:
    """Replace a nested setting, by constructing every dataclass on the way."""
    first, *rest = path
    inner = getattr(settings, first)
    if rest and rest[0] == "0":
        new: Any = (changed(inner[0], rest[1:], value), *inner[1:])
    else:
        new = changed(inner, rest, value) if rest else value
    return replace(settings, **{first: new})


def run_in_folder(case: Case, folder: Path) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    stop_after(1)
    (run_flag if case.how == "flag" else run_python)(case)


def judge(case: Case, outcome: Outcome) -> str | None:
    """None if the case held, else what is wrong with it."""
    if outcome.failure is not None and any(text in outcome.output for text in PROGRESS):
        return None  # accepted: 100,000 epochs take a while, and the progress says so
    if outcome.failure is not None:
        return f"{outcome.failure}: {outcome.output}"
    if outcome.status == 2:
        words = [w for w in case.setting.replace("-", "_").split(".") if w != "0"]
        words += ["CIFAR10"] * (case.of == "study")  # the data that a study lacks here
        said = outcome.said.replace("-", "_").lower()
        value = str(case.value[0] if isinstance(case.value, list) and case.value else case.value)
        # A value stands for its setting: a pattern, or a word too many.
        shown = [" ".join(text.split()) for text in (escape(value[:20]), value[:20])]
        words += [text for text in shown if text]
        if not any(w.lower().replace("-", "_") in said for w in words):
            return f"refused without its name: {outcome.said}"
        if case.how == "python" and outcome.output.count("\n") > 3:
            return f"refused in many lines: {outcome.output}"
    elif outcome.status == 1 and "selfsight: " not in outcome.output:
        return f"failed without a sentence: {outcome.said}"
    elif outcome.status not in (0, 1, 2, STOPPED):
        return f"status {outcome.status}: {outcome.said}"
    return None


def test_a_hostile_setting_is_refused_by_name_or_runs(folder, tmp_path, record_property):
    def check(case: Case) -> str | None:
        work = tmp_path / "work"
        work.mkdir()
        for name in ("photos", "run"):
            (work / name).symlink_to(folder / name)
        if case.of in ("evaluate", "linear.sgd", "analysis", "resume", *USED):
            (work / "run").unlink()
            shutil.copytree(folder / "run", work / "run")
        outcome = run_case(run_in_folder, case, work, seconds=60)
        shutil.rmtree(work)
        return judge(case, outcome)

    cases = pick_cases(all_cases(), few=12, full=COUNT)
    assert_none_failed("one hostile setting", cases, check, record_property)
