"""Progress is told once something has taken a moment, and only then."""

from selfsight import progress
from selfsight.progress import track


def test_long_work_says_how_far_it_is_where_there_is_no_terminal(capsys, monkeypatch):
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    assert list(track(range(5), "climbing")) == [0, 1, 2, 3, 4]
    assert "climbing: 2/5, 60 s left" in capsys.readouterr().err


def test_short_or_nameless_work_says_nothing(capsys, monkeypatch):
    assert list(track((c for c in "abc"), "spelling")) == ["a", "b", "c"]
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    assert list(track(range(3), None)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_other_processes_are_silent(capsys, monkeypatch):
    monkeypatch.setattr(progress.dist, "rank", lambda: 1)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    assert list(track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
