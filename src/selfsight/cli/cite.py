"""BibTeX of the papers of a method, and of this project."""

import inspect
import re
from importlib import resources

from selfsight.recipe import ALL_METHODS
from selfsight.version import __version__

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
PROJECT = f"""@software{{selfsight,
  title = {{selfsight: learn image encoders from unlabeled images, and prove how good they are}},
  author = {{{{The selfsight developers}}}},
  version = {{{__version__}}},
  license = {{Apache-2.0}},
}}"""


def cite(method: str) -> list[str]:
    """Return the BibTeX entries of every paper that a method's file names, in its order.

    A paper that is missing in papers.bib gets an entry from what the method's file says.
    """
    text = inspect.getdoc(inspect.getmodule(ALL_METHODS[method])) or ""
    known = read_papers()
    return [known.get(eprint) or _build_entry(text, eprint) for eprint in ARXIV.findall(text)]


def read_papers() -> dict[str, str]:
    """Read the entries of papers.bib by their arXiv number."""
    text = resources.files("selfsight.cli").joinpath("papers.bib").read_text(encoding="utf-8")
    entries = [entry.strip() for entry in re.split(r"\n(?=@)", text)]
    return {eprint[1]: e for e in entries if (eprint := re.search(r"eprint = \{(.+?)\}", e))}


def _build_entry(text: str, eprint: str) -> str:
    """Build an entry from "NAME (AUTHORS YEAR, arXiv:NUMBER)"."""
    before = " ".join(text.split(f"arXiv:{eprint}")[0].split())
    found = re.search(r"([^(;]*?),? (\d{4}),? *(?:\"[^\"]*\",? *)?$", before)
    authors, year = (found[1].strip(), found[2]) if found else ("Unknown", f"20{eprint[:2]}")
    authors = authors.replace(" et al.", ", others").replace(", ", " and ")
    name = text.split("(")[0].strip()
    return (
        f"@misc{{arxiv{eprint},\n  title = {{{name}}},\n  author = {{{authors}}},\n"
        f"  year = {{{year}}},\n  eprint = {{{eprint}}},\n  archiveprefix = {{arXiv}},\n}}"
    )
