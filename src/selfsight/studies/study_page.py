"""The page of a study: claims and verdicts, figures, and a table of all runs, in one HTML file."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfsight.report_page.page import build_page
from selfsight.run_files.json_files import write_file
from selfsight.studies.judge_claims import arm_results
from selfsight.studies.ledger import Entry
from selfsight.studies.ledger_plots import PLOT_CAPTIONS, PLOT_TITLES, draw_study
from selfsight.studies.result_tables import (
    MEASURES,
    TRANSFER,
    describe_runs,
    list_results,
    list_transfer,
    name_images,
    tabulate_judgments,
)
from selfsight.studies.study_types import Scale, Study

TITLES: dict[str, str] = {str(measure): title for measure, title in MEASURES.items()}
SETTINGS = ("arm", "epochs", "batch")
COLUMNS = (*SETTINGS, *TITLES, "published", "seeds", "dips", "training", "images/s", "memory")
STYLE = """
#plots { display: grid; gap: 1rem 2rem; }
#plots { grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
#plots h2 { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: 0.4rem; color: var(--soft); font-size: 0.88rem; }
th, td { overflow-wrap: normal; }
.wide + p { margin-top: 0.8rem; }
#claims td:nth-child(n+2) { white-space: nowrap; }
#claims td:nth-child(2) { font-weight: 600; }
#claims td:first-child, #claims td:nth-child(5) { min-width: 14rem; white-space: normal; }
#arms table { font-size: 0.85rem; }
#arms th, #arms td { padding-inline: 0.3rem; }
#arms td:nth-child(n+4):nth-child(-n+6) { min-width: 6rem; }
#arms td:nth-child(10) { white-space: nowrap; }
"""
DIFFERENCES = (
    "The difference is the accuracy of the arm that should be better, or keep up, minus that of "
    "the other arm or the published number; for a claim that A is worse than B, it is B minus A. "
    "So a positive difference is in the direction of the claim. (Of dips fewer are better, so that "
    "it is the other arm's number minus this arm's.) It is the mean over the seeds that both arms "
    "have, and in brackets is its 95 % interval over seeds, which one seed does not have. A claim "
    "holds if the whole interval is above the points that it asks for (0 if it names none, -1 for "
    '"to 1 point"), does not hold if it is below, and is unclear otherwise. One seed decides only '
    "if the difference is several times the spread over seeds."
)
DIPS = (
    "Dips are measurements of the online kNN accuracy during training that are a point or more "
    "below the best before, per run."
)
SHOW_TITLE = (
    'const page = JSON.parse(document.getElementById("data").textContent);\n'
    'document.getElementById("title").textContent = page.title;'
)


def write_study_page(study: Study, scale: Scale, entries: Sequence[Entry], path: Path) -> Path:
    """Write the page of a study on one data set; return its path."""
    write_file(path, build_study_page(study, scale, entries))
    return path


def build_study_page(study: Study, scale: Scale, entries: Sequence[Entry]) -> str:
    """Build the page of a study from the ledger; it needs no network."""
    judged = tabulate_judgments(study, scale, entries)
    results = list_results(study, scale, entries)
    seen = [row for row in results if row["seeds"]]
    columns = [n for n in COLUMNS if n != "memory" or any(row[n] != "-" for row in seen)]
    run = [
        {TITLES.get(name, name): str(row[name]).replace(", ", ",\u00a0", 1) for name in columns}
        for row in seen
    ]
    transfer = list_transfer(study, scale, entries)
    rest = [{name: row[name] for name in SETTINGS} for row in results if not row["seeds"]]
    summary = f"{len(rest)} of {len(results)} arms were not run"
    plots = [
        f"<figure>{plot}<figcaption><b>{PLOT_TITLES[end]}.</b> {html.escape(PLOT_CAPTIONS[end])}"
        "</figcaption></figure>"
        for end, plot in draw_study(study, scale, entries).items()
    ]
    return build_page(
        "study.html",
        {"title": f"{study.name} on {name_images(scale, arm_results(study, scale, entries))}"},
        (),
        kind="study",
        script=SHOW_TITLE,
        style=STYLE,
        paper=html.escape(study.paper),
        claim=f"<b>Claim:</b> {html.escape(study.claim)}<br>",
        judged_by=f"<b>Judged by:</b> {html.escape(study.judged_by)}",
        claims=_table(judged, DIFFERENCES) or "<p>No two arms of this data set are compared.</p>",
        plots="\n".join(plots) or "<p>Too few arms were run for a figure.</p>",
        arms=_table(run, DIPS) + _table(transfer, TRANSFER)
        or "<p>No arm was run on this data set.</p>",
        rest=f"<details><summary>{summary}</summary>{_table(rest)}</details>" if rest else "",
        runs=html.escape(describe_runs(study, scale, entries).replace("`", "")),
    )


def _table(rows: Sequence[Mapping[str, object]], note: str = "") -> str:
    """An HTML table with a note below it; empty if there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in rows[0])
    lines = [
        "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    below = f'<p class="small">{html.escape(note)}</p>' if note else ""
    return f'<div class="wide">{table}</div>{below}'
