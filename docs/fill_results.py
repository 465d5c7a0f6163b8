"""Fill the tables and plots of the pages from the ledger: `python -m docs.fill_results`.

A table stands between two markers, in any page:

    <!-- ledger: STUDY SCALE -->              all arms, verdicts, and what they were measured with
    <!-- ledger: STUDY SCALE ARM ... -->      the numbers of some arms, of "all", or of those "run"
    <!-- ledger: overview -->                 all studies: what was run, and the verdicts
    <!-- ledger: criteria SCALE -->           how well criteria without labels choose among all runs
    <!-- ledger: criteria SCALE without METHOD ... -->          among those of the other methods
    <!-- end of ledger -->

Plots of the study follow the tables of all arms and of those that were run. The test of the pages
fails if a table differs from what the ledger gives.
"""

import os
import re
from collections.abc import Container, Sequence
from pathlib import Path

from selfsight.studies import STUDIES, find_study
from selfsight.studies.ledger import Entry, read_ledger
from selfsight.studies.ledger_plots import PLOT_TITLES, draw_study
from selfsight.studies.result_tables import (
    render_overview,
    render_regrets,
    render_results,
    render_short,
)
from selfsight.studies.study_types import Scale

ROOT = Path(__file__).resolve().parents[1]
# Plots that the pages show, by their ends; published numbers stand beside the larger scale's.
SHOWN: dict[Scale, tuple[str, ...]] = {"cifar10": tuple(PLOT_TITLES), "small": ("", "_cells")}
PLOTS = ROOT / "docs" / "plots"
BLOCK = re.compile(
    r"(?P<begin><!-- ledger: (?P<words>[\w ]+?) -->\n).*?(?P<end><!-- end of ledger -->)", re.DOTALL
)


def fill(page: Path, text: str, entries: Sequence[Entry], plots: Container[str]) -> str:
    """Replace every table of a page by what the ledger gives, with the plots of the study."""
    folder = os.path.relpath(PLOTS, page.parent)

    def table(block: re.Match[str]) -> str:
        if block["words"] == "overview":
            shown = render_overview(
                list(STUDIES.values()), ("small", "cifar10", "imagenette"), entries
            )
            return f"{block['begin']}\n{shown}\n{block['end']}"
        name, scale, *arms = block["words"].split()
        if name == "criteria":
            shown = render_regrets(scale, entries, without=arms[1:])
            return f"{block['begin']}\n{shown}\n{block['end']}"
        study = find_study(name)
        shown = (
            render_short(study, scale, entries, arms)
            if arms
            else render_results(study, scale, entries)
        )
        if arms in ([], ["run"]):
            images = [
                f"![{title}]({folder}/{plot})\n"
                for end, title in PLOT_TITLES.items()
                if (plot := name_plot(name, scale, end)) in plots
            ]
            shown += "\n" + "".join(images) if images else ""
        return f"{block['begin']}\n{shown}\n{block['end']}"

    return BLOCK.sub(table, text)


def list_pages(root: Path = ROOT) -> list[Path]:
    """Pages that have a table of the ledger."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


def draw_plots(entries: Sequence[Entry]) -> dict[str, str]:
    """File names of plots in docs/plots/, and their content."""
    return {
        name_plot(study.name, scale, end): plot
        for study in STUDIES.values()
        for scale, ends in SHOWN.items()
        for end, plot in draw_study(study, scale, entries).items()
        if end in ends
    }


def name_plot(study: str, scale: str, end: str) -> str:
    """File name of a plot, whose kind the end says."""
    return f"{study}{'' if scale == 'cifar10' else f'_{scale}'}{end}.svg"


def main() -> None:
    """Write pages and plots."""
    entries = read_ledger()
    plots = draw_plots(entries)
    for page in list_pages():
        text = page.read_text(encoding="utf-8")
        if (filled := fill(page, text, entries, plots)) != text:
            page.write_text(filled, encoding="utf-8")
            print(f"Wrote {page.relative_to(ROOT)}")
    for path in PLOTS.glob("*.svg"):
        if path.name not in plots:  # its runs have other settings now
            path.unlink()
    for name, plot in plots.items():
        path = PLOTS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(plot, encoding="utf-8")
        print(f"Wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
