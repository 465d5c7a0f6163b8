"""The page of a study: claims and verdicts, figures, and a table of all runs, in one HTML file."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfsight.report_page.page import build_page
from selfsight.run_files.json_files import explain_write_errors, write_text
from selfsight.studies.ledger import Entry
from selfsight.studies.ledger_plots import PLOT_TITLES, draw_study
from selfsight.studies.result_tables import (
    DATA_SETS,
    MEASURES,
    describe_runs,
    list_results,
    tabulate_judgments,
)
from selfsight.studies.study_types import Scale, Study

TITLES: dict[str, str] = {str(measure): title for measure, title in MEASURES.items()}
SETTINGS = ("arm", "epochs", "batch")
COLUMNS = (*SETTINGS, *TITLES, "published", "seeds", "dips", "training", "images/s", "memory")
STYLE = """
figure svg { max-width: 100%; height: auto; }
th, td { overflow-wrap: normal; }
#arms { overflow-x: auto; }
#claims td:nth-child(2) { font-weight: 600; white-space: nowrap; }
"""
SHOW_TITLE = (
    'const page = JSON.parse(document.getElementById("data").textContent);\n'
    'document.getElementById("title").textContent = page.title;'
)


def write_study_page(study: Study, scale: Scale, entries: Sequence[Entry], path: Path) -> Path:
    """Write the page of a study on one data set; return its path."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, build_study_page(study, scale, entries))
    return path


def build_study_page(study: Study, scale: Scale, entries: Sequence[Entry]) -> str:
    """Build the page of a study from the ledger; it needs no network."""
    judged = tabulate_judgments(study, scale, entries)
    results = list_results(study, scale, entries)
    run = [
        {TITLES.get(name, name): row[name] for name in COLUMNS} for row in results if row["seeds"]
    ]
    rest = [{name: row[name] for name in SETTINGS} for row in results if not row["seeds"]]
    summary = f"{len(rest)} of {len(results)} arms were not run"
    plots = [
        f"<figure>{plot}<figcaption>{PLOT_TITLES[end]}</figcaption></figure>"
        for end, plot in draw_study(study, scale, entries).items()
    ]
    return build_page(
        "study.html",
        {"title": f"{study.name} on {DATA_SETS[scale]}"},
        (),
        kind="study",
        script=SHOW_TITLE,
        style=STYLE,
        paper=html.escape(study.paper),
        claim=html.escape(study.claim),
        judged_by=html.escape(study.judged_by),
        claims=_table(judged) or "<p>No two arms of this data set are compared.</p>",
        plots="\n".join(plots) or "<p>Too few arms were run for a figure.</p>",
        arms=_table(run) or "<p>No arm was run on this data set.</p>",
        rest=f"<details><summary>{summary}</summary>{_table(rest)}</details>" if rest else "",
        runs=html.escape(describe_runs(study, scale, entries).replace("`", "")),
    )


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """An HTML table; empty if there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in rows[0])
    lines = [
        "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
