"""`selfsight methods NAME --cite` prints BibTeX of the papers that the method's file names."""

import json
import re
from pathlib import Path

import pytest
import yaml

from selfsight.cli import cite as citations
from selfsight.cli.main import main
from selfsight.recipe import ALL_METHODS

ROOT = Path(__file__).parents[2]


def read_fields(entry: str) -> dict[str, str]:
    """Fields of a BibTeX entry, by a reader that counts braces."""
    assert entry.count("{") == entry.count("}"), entry
    assert re.fullmatch(r"@\w+\{[\w.]+,\n(  \w+ = \{.*\},\n)+\}", entry, re.DOTALL), entry
    return dict(re.findall(r"^  (\w+) = \{(.*?)\},$", entry, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", ALL_METHODS)
def test_a_method_cites_the_papers_of_its_file(name, capsys):
    main(["methods", name, "--cite"])
    *papers, project = capsys.readouterr().out.strip().split("\n\n")
    source = (ROOT / f"src/selfsight/methods/{name}.py").read_text().split('"""')[1]
    named = re.findall(r"arXiv:([\d.]+\d)", source)
    assert named and [read_fields(paper)["eprint"] for paper in papers] == named
    for paper in map(read_fields, papers):
        assert {"title", "author", "year"} <= set(paper)
    assert project.startswith("@software{selfsight,")


def test_titles_and_authors_are_those_of_the_pages():
    """The pages of the methods have title, last names and number of almost every paper."""
    heads = [p.read_text().split("\n\n")[1] for p in (ROOT / "docs/methods").glob("*.md")]
    pages = "\n".join(" ".join(head.split()) for head in heads)
    checked = 0
    for eprint, entry in citations.read_papers().items():
        paper = read_fields(entry)
        found = re.search(rf'^([^"\n]+) \d{{4}}, "([^"]+)", arXiv:{eprint}', pages, re.M)
        if found:
            accents = entry.replace("{\\'e}", "é")
            people = re.findall(r"(?:^|and\s+)([^,]+), ", read_fields(accents)["author"])
            listed = found[1].split(" as in ")[-1].strip().split(", ")
            assert people == listed or listed == [f"{people[0]} et al."], eprint
            assert paper["title"] == found[2]
            checked += 1
    assert checked >= 15


def test_a_paper_without_an_entry_is_cited_by_what_the_file_says(monkeypatch):
    monkeypatch.setattr(citations, "read_papers", dict)
    assert read_fields(citations.cite("mocov3")[0]) == {
        "title": "MoCo v3",
        "author": "Chen and Xie and He",
        "year": "2021",
        "eprint": "2104.02057",
        "archiveprefix": "arXiv",
    }
    assert read_fields(citations.cite("moco")[1])["author"] == "Chen and others"


def test_the_project_is_cited_as_in_the_file_for_it(capsys):
    main(["methods", "--cite", "--json"])
    (entry,) = json.loads(capsys.readouterr().out)
    paper, file = read_fields(entry), yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert paper["title"] == file["title"] and paper["license"] == file["license"]
    assert paper["version"] == str(file["version"])
    assert paper["author"] == f"{{{file['authors'][0]['name']}}}"


def test_an_unknown_method_is_a_sentence(capsys):
    with pytest.raises(SystemExit):
        main(["methods", "mocco", "--cite"])
    assert 'There is no method "mocco". Did you mean "moco"?' in capsys.readouterr().err
