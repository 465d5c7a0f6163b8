"""The documentation builds, shows the current source, and its links and names exist."""

import html
import inspect
import re
import shutil
import sys
import tomllib
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.build import ROOT, build

from selfsight.cli.main import COMMANDS, main
from selfsight.errors import UserError
from selfsight.methods import BASELINES, METHODS
from selfsight.recipe import Recipe
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS

PAGES = sorted(path.stem for path in (ROOT / "docs/methods").glob("*.md"))
RECIPE_FLAGS = {f"--{field.name.replace('_', '-')}" for field in fields(Recipe)}
SECTIONS = ("The idea", "The equation", "Our forward", "Recipe", "Where", "Published numbers")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build(out)
    return out


@pytest.fixture
def repository(tmp_path):
    """A copy of the page of MoCo and of the sources, to be changed by a test."""
    shutil.copytree(
        ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.md", "*.svg")
    )
    shutil.copyfile(ROOT / "docs/methods/moco.md", tmp_path / "docs/methods/moco.md")
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src/selfsight/methods", tmp_path / "src/selfsight/methods")
    shutil.copytree(ROOT / "src/selfsight/losses", tmp_path / "src/selfsight/losses")
    return tmp_path


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def visible_text(page: Path) -> str:
    """The text of a page without tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


@pytest.mark.parametrize("name", sorted({*PAGES} & {*METHODS, *BASELINES}))
def test_a_page_shows_the_forward_of_its_method(site, name):
    config = (METHODS | BASELINES)[name]
    class_name = inspect.signature(config.create).return_annotation
    method = getattr(sys.modules[config.__module__], class_name)
    shown = visible_text(site / f"docs/methods/{name}.html")
    for line in inspect.getsource(method.forward).splitlines():
        assert " ".join(line.split()) in shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_every_section(name):
    page = (ROOT / f"docs/methods/{name}.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    missing = [s for s in SECTIONS if not any(h.startswith(s) for h in headings)]
    assert not missing
    assert f"--recipe {'eqco_negatives' if name == 'eqco' else name}." in page


def test_every_recipe_that_a_page_names_exists():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(path.read_text() for path in pages)
    named = set(re.findall(r"--recipe (?!my\.)(\w+\.\w+)", text))  # my.json is the reader's
    assert len(named) > 20
    assert named - {"my.json", "my.py"} <= {*RECIPES, *ARMS}  # files, not names


def test_every_file_that_a_page_names_exists():
    folders = (ROOT, ROOT / "src/selfsight", ROOT / "docs")
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for file in re.findall(r"`([\w/]+/\w+\.(?:py|md))`", page.read_text()):
            if "NAME" not in file:
                assert any((folder / file).is_file() for folder in folders), f"{page.name}: {file}"
        for module in re.findall(r"python -m (tests[\w.]+)", page.read_text()):
            assert ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file(), module


def test_every_command_and_flag_that_a_page_shows_exists(capsys):
    flags: dict[str, set[str]] = {}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text().replace("\\\n", " ")
        for command, rest in re.findall(r"(?:^ *|`|-m )selfsight (\w+)([^`#\n]*)", text, re.M):
            assert command in COMMANDS, f"{page.name}: selfsight {command}"
            shown = set(re.findall(r"(?<!\S)\[?(--[a-z-]+)(?![\w.-])", rest))
            flags.setdefault(command, set()).update(shown)
    assert set(flags) == set(COMMANDS)
    for command, shown in flags.items():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known = capsys.readouterr().out
        unknown = {flag for flag in shown - RECIPE_FLAGS if flag not in known}
        assert not unknown, f"selfsight {command}: {unknown}"


def test_every_name_on_the_architecture_page_is_in_the_source():
    source = "".join(path.read_text() for path in (ROOT / "src/selfsight").rglob("*.py"))
    page = (ROOT / "docs/architecture.md").read_text()
    names = set(re.findall(r"`([a-zA-Z_]+)(?:\([\w, ]*\))?`", page)) - {"sightline"}
    assert len(names) > 20
    assert names - set(re.findall(r"\w+", source)) == set()


def test_the_architecture_page_shows_the_import_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    page = (ROOT / "docs/architecture.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0].splitlines()
    assert [line.split("  ")[0] for line in shown] == layers[1:]  # without __main__


class Links(HTMLParser):
    """The links of a page, and the ids in it that links can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id", ""))
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


def test_every_internal_link_has_a_target(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 20
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not anchor or anchor in pages[target].ids, f"{path.name}: {link}"


def test_the_navigation_lists_every_page(site):
    pages = [path.relative_to(site).as_posix() for path in site.rglob("*.html")]
    linked = Links((site / "index.html").read_text()).links
    assert set(pages) - {"docs/methods/index.html"} <= set(linked)


def test_the_build_fails_for_a_note_without_a_line(repository, tmp_path):
    replace_text(
        repository / "docs/methods/moco.md", "`h, q1 = self.student(x1)`", "`h, q1 = gone(x1)`"
    )
    with pytest.raises(UserError, match=r"moco.md has no note for the step `h, q1 = self.student"):
        build(tmp_path / "site", repository)
    replace_text(
        repository / "docs/methods/moco.md",
        "| `h, q1 = gone",
        "| `h, q1 = self` | twice |\n| `gone",
    )
    with pytest.raises(UserError, match=r"a note for `gone.x1.`, but no line of forward contains"):
        build(tmp_path / "site", repository)


def test_the_build_fails_for_a_step_without_a_note(repository, tmp_path):
    source = repository / "src/selfsight/methods/moco.py"
    replace_text(source, "        h, q1 = self", "        x1 = x1.flip(3)\n        h, q1 = self")
    with pytest.raises(UserError, match=r"no note for the step `x1 = x1.flip\(3\)` of forward"):
        build(tmp_path / "site", repository)


def test_the_build_fails_for_a_marker_of_an_unknown_class(repository, tmp_path):
    replace_text(repository / "docs/methods/moco.md", "methods.moco.MoCo", "methods.moco.Gone")
    with pytest.raises(UserError, match=r"methods/moco.py has no such function"):
        build(tmp_path / "site", repository)
