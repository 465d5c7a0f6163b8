"""The documentation builds, shows the source as it is, and its links and names lead somewhere."""

import html
import inspect
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.build import ROOT, build

from selfsight.errors import UserError
from selfsight.methods import BASELINES, METHODS
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS

PAGES = sorted([*METHODS, *BASELINES, "eqco"])
SECTIONS = ("The idea", "The equation", "Our forward", "Recipe", "Where", "Published numbers")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build(out)
    return out


@pytest.fixture
def copied(tmp_path):
    """The pages and one source file in another place, to be spoilt."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src/selfsight/methods", tmp_path / "src/selfsight/methods")
    shutil.copytree(ROOT / "src/selfsight/losses", tmp_path / "src/selfsight/losses")
    return tmp_path


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def words(page: Path) -> str:
    """The text of a page without its tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


@pytest.mark.parametrize("name", sorted(METHODS | BASELINES))
def test_a_page_shows_the_forward_of_its_method(site, name):
    config = (METHODS | BASELINES)[name]
    kind = inspect.signature(config.make).return_annotation
    source = Path(inspect.getsourcefile(config)).read_text()
    forward = source.split(f"class {kind}(Method)")[1].split("    def forward(")[1]
    forward = forward.split("\n    def ")[0]
    shown = words(site / f"docs/methods/{name}.html")
    for line in forward.splitlines()[1:]:
        assert " ".join(line.split()) in shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_every_section(name):
    page = (ROOT / f"docs/methods/{name}.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    found = [next((h for h in headings if h.startswith(s)), None) for s in SECTIONS]
    assert None not in found
    assert f"--recipe {'eqco_negatives' if name == 'eqco' else name}." in page


def test_every_recipe_that_a_page_names_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(path.read_text() for path in pages)
    named = set(re.findall(r"--recipe (\w+\.\w+)", text))
    assert len(named) > 20
    assert named <= {*RECIPES, *ARMS}


class Links(HTMLParser):
    """What a page points at, and the places in it that can be pointed at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places.add(given.get("id", ""))
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


def test_every_internal_link_leads_to_a_page_and_a_place(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 20
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, place = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not place or place in pages[target].places, f"{path.name}: {link}"


def test_a_page_stands_in_the_navigation_of_every_other(site):
    pages = [path.relative_to(site).as_posix() for path in site.rglob("*.html")]
    linked = Links((site / "index.html").read_text()).links
    assert set(pages) - {"docs/methods/index.html"} <= set(linked)


def test_a_note_without_a_line_stops_the_build(copied, tmp_path):
    changed(copied / "docs/methods/moco.md", "`h, q = self.student(x_q)`", "`h, q = gone(x_q)`")
    with pytest.raises(UserError, match=r"moco.md has no note for the step `h, q = self.student"):
        build(tmp_path / "site", copied)
    changed(copied / "docs/methods/moco.md", "| `h, q = gone", "| `h, q = self` | twice |\n| `gone")
    with pytest.raises(UserError, match=r"a note for `gone.x_q.`, but no line of forward holds"):
        build(tmp_path / "site", copied)


def test_a_step_without_a_note_stops_the_build(copied, tmp_path):
    source = copied / "src/selfsight/methods/moco.py"
    changed(source, "        h, q = self", "        x_q = x_q.flip(3)\n        h, q = self")
    with pytest.raises(UserError, match=r"no note for the step `x_q = x_q.flip\(3\)` of forward"):
        build(tmp_path / "site", copied)


def test_a_marker_that_names_nothing_stops_the_build(copied, tmp_path):
    changed(copied / "docs/methods/moco.md", "methods.moco.MoCo", "methods.moco.Gone")
    with pytest.raises(UserError, match=r"selfsight.methods.moco has none"):
        build(tmp_path / "site", copied)
