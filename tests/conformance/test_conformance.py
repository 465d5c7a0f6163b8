"""Every check passes for a method that keeps its rule and fails for one that breaks it."""

import json

import pytest

from selfsight import dist
from selfsight.cli.main import main
from selfsight.conformance import CHECKS, Subject, check, leakage_checks, run
from selfsight.conformance.check_method import COMPILED
from selfsight.conformance.method_under_test import BrokenRuleError
from selfsight.conformance.processes_and_resume_checks import compare_traces, train
from selfsight.conformance.start_processes import ProcessGroup, RankError
from selfsight.methods import METHODS
from tests.conformance.outside_method import OutsideConfig

MODULE = "tests.conformance.outside_method"
BROKEN = [
    ("builds", "the loss is a vector", "must be one finite number"),
    ("gradients", "a parameter is not used", "No gradient reaches unused"),
    ("gradients", "a frozen name is unknown", "head.last.weight, which is not a parameter"),
    ("gradients", "a frozen parameter learns", "but it gets a gradient"),
    ("forward keeps state", "the queue is pushed in forward", "forward changed queue.keys"),
    ("forward keeps state", "forward counts its calls", "forward changed calls"),
    ("evaluation mode", "evaluation mode counts its calls", "forward changed calls"),
    ("evaluation mode", "the features are of the second view", "for the first view alone"),
    ("after_step reads the step", "keys are stashed", "NoneType"),
    ("after_step reads the step", "the update has a graph", 'Step.update["keys"] carries'),
    ("skipped step", "a skipped step is not masked", "A skipped step changed teacher.net"),
    ("mask of zero", "a masked step does nothing", "differs between skipped=None and a mask"),
    ("teacher follows", "the teacher stays", "does not move the teacher"),
    ("repeatable", "the global random state is read", "not the same twice"),
    ("repeatable", "numpy's random state is read", "not the same twice"),
    ("state dict", "state is not saved", "not in the state dict"),
    ("resume", "state is not saved", "After a resume"),
    ("resume", "the momentum is a plain attribute", "After a resume"),
    ("bf16", "the loss is bf16", "the loss is torch.bfloat16"),
    ("teacher gradient", "the teacher gets a gradient", "respect to teacher.net"),
    ("positives", "the positive is a negative", "cannot fall below log 2"),
    ("labels", "labels are read", "The loss depends on labels"),
    ("image index", "the index is read", "depends on the index of the images"),
    ("two processes", "the loss depends on the share of a process", "The losses of two"),
    ("compiled", "the host reads the loss", ""),
]
TWO = "two processes"
OF_ONE = {name: function for name, function in CHECKS.items() if name != TWO}


def subject(breaks=""):
    return Subject(method=OutsideConfig(breaks=breaks))


def test_every_check_is_shown_to_fail():
    assert {name for name, *_ in BROKEN} == {*CHECKS, *COMPILED}


def test_a_method_that_keeps_the_contract_passes_every_check(two_processes):
    checks = OF_ONE | {TWO: lambda s: compare(s, two_processes)}
    assert {(r.outcome, r.reason) for r in check(subject(), checks)} == {("pass", "")}


def compare(subject, processes):
    one = train(subject)
    for several in processes(train, subject):
        compare_traces(one, several)


@pytest.mark.parametrize(("name", "breaks", "reason"), [row for row in BROKEN if row[0] in OF_ONE])
def test_a_check_fails_for_a_method_that_breaks_its_rule(name, breaks, reason, monkeypatch):
    monkeypatch.setattr(leakage_checks, "STARTS", 1)  # the good one needs no other
    monkeypatch.setattr(leakage_checks, "LEARNING_STEPS", 20)  # nor as many
    (result,) = check(subject(breaks), {name: CHECKS[name]})
    assert result.outcome == "fail" and reason in result.reason


def test_one_mistake_does_not_hide_the_check_that_names_it():
    few = {name: CHECKS[name] for name in ("builds", "gradients", "repeatable", "labels")}
    for breaks, name in {
        "the global random state is read": "repeatable",
        "labels are read": "labels",
    }.items():
        assert name in {r.check for r in check(subject(breaks), few) if r.outcome == "fail"}


@pytest.mark.parametrize(("breaks", "reason"), [row[1:] for row in BROKEN if row[0] == TWO])
def test_a_check_fails_for_a_method_that_breaks_the_rule_of_two(breaks, reason, two_processes):
    (result,) = check(subject(breaks), {TWO: lambda s: compare(s, two_processes)})
    assert result.outcome == "fail" and reason in result.reason


def train_without_gradient(subject):
    """Train with a mean over processes that is a constant to autograd."""

    def mean(x):
        return dist.all_sum(x.detach()) / dist.world_size()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "mean", mean)
        return train(subject, steps=1)


def test_a_mean_over_processes_that_lost_its_gradient_fails_the_check_of_two(two_processes):
    one = train(subject(), steps=1)
    for several in two_processes(train_without_gradient, subject()):
        with pytest.raises(BrokenRuleError, match="The gradients of two processes are not"):
            compare_traces(one, several)


@pytest.mark.slow
def test_tracing_fails_for_a_method_that_reads_the_loss_on_the_host():
    (good,) = check(subject(), COMPILED)
    (broken,) = check(subject("the host reads the loss"), COMPILED)
    assert good.outcome == "pass" and broken.outcome == "fail" and broken.reason


@pytest.mark.slow
def test_all_methods_of_the_package_conform():
    for name in METHODS:
        found = run(name, quiet=True)
        assert found["passed"], [c for c in found["checks"] if c["outcome"] == "fail"]
        assert [c["check"] for c in found["checks"]] == list(CHECKS)


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_ended():
    with pytest.raises(RankError, match=r"Rank \d did not answer in 2 s"):  # noqa: SIM117
        with ProcessGroup(2, timeout=2.0) as group:
            group(wait_on_one_rank)
    assert not any(worker.is_alive() for worker in group.workers)


def wait_on_one_rank():
    from selfsight import dist

    if dist.rank() == 0:
        dist.barrier()


def test_a_method_that_does_not_build_fails_once_and_the_command_with_status_1(capsys):
    with pytest.raises(SystemExit, match="1"):
        main(["conformance", f"{MODULE}:EmptyConfig", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    first, *rest = found["checks"]
    assert first["outcome"] == "fail" and "NotImplementedError" in first["reason"]
    assert {(c["outcome"], c["reason"]) for c in rest} == {("does not apply", "It does not build.")}


def test_the_table_has_a_line_for_each_check_and_the_settings_that_were_reduced(capsys):
    with pytest.raises(SystemExit, match="1"):
        main(["conformance", f"{MODULE}:EmptyConfig", "--method.norm", "ln"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{MODULE}:EmptyConfig with bn_group=4, norm=ln"
    assert [line for line in lines if line.startswith(("builds", "two processes"))]
    assert lines[-1] == f"0 passed, 1 failed, {len(CHECKS) - 1} do not apply."


FILES = {
    "raises_at_import": "1 / 0",
    "does_not_parse": "def (",
    "has_no_config": "class Config: pass\nnumber = 3",
}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("not_there:Config", "ModuleNotFoundError: No module named 'not_there'"),
        (f"{MODULE}:Missing", "has no attribute 'Missing'"),
        ("raises_at_import:Config", "ZeroDivisionError: division by zero"),
        ("does_not_parse:Config", "SyntaxError: invalid syntax"),
        ("has_no_config:Config", "is not a subclass of selfsight.methods.MethodConfig"),
        ("has_no_config:number", "is not a subclass of selfsight.methods.MethodConfig"),
        (":Config", "Cannot import the method"),
        ("moca", 'Did you mean "moco"?'),
        (f"{MODULE}:NeedyConfig", "Give every setting a default"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_sentence(
    name, sentence, tmp_path, monkeypatch, capsys
):
    for file, text in FILES.items():
        (tmp_path / f"{file}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", name])
    shown = capsys.readouterr().err
    assert sentence in shown and "Traceback" not in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--batch-size", "7"], "two processes need an even number"),
        (["--method.queue-size", "0"], "method.queue_size is 0"),
        (["--backbone", "vit_t9"], 'There is no backbone "vit_t9"'),
        (["--backbone", "vit_t4", "--image-size", "18"], "18"),
        (["--image-size", "1"], "cannot encode views of 1 x 1 pixels"),
    ],
)
def test_flags_that_cannot_work_are_refused_by_name(flags, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["conformance", "moco", *flags])
    assert sentence in capsys.readouterr().err
