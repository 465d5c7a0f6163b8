"""Progress is shown for long work only, by one process."""

from selfsight.terminal import progress
from selfsight.terminal.progress import track


def test_long_work_prints_its_progress_without_a_terminal(capsys, monkeypatch):
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    assert list(track(range(5), "climbing")) == [0, 1, 2, 3, 4]
    assert "climbing: 2/5, 60 s left" in capsys.readouterr().err


def test_short_work_and_work_without_a_title_print_nothing(capsys, monkeypatch):
    assert list(track((c for c in "abc"), "spelling")) == ["a", "b", "c"]
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    assert list(track(range(3), None)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_other_processes_print_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress.dist, "rank", lambda: 1)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    assert list(track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
