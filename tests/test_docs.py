"""The documentation builds, shows the current source, and its links and names exist."""

import html
import inspect
import re
import shutil
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from docs.annotated_source import ROOT, show_source

from selfsight.cli.main import COMMANDS, main
from selfsight.errors import UserError
from selfsight.methods import BASELINES, METHODS
from selfsight.recipe import Recipe
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS

PAGES = sorted(path.stem for path in (ROOT / "docs/methods").glob("*.md"))
RECIPE_FLAGS = {f"--{field.name.replace('_', '-')}" for field in fields(Recipe)}
SECTIONS = ("The idea", "The equation", "Our forward", "Recipe", "Where", "Published numbers")


@pytest.fixture
def repository(tmp_path):
    """A copy of the page of MoCo and of its sources, to be changed by a test."""
    for path in ("docs/methods/moco.md", "src/selfsight/methods/moco.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / path)
    return tmp_path


def show_moco(root: Path) -> str:
    page = Path("docs/methods/moco.md")
    return show_source((root / page).read_text(), page, root)


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", sorted({*PAGES} & {*METHODS, *BASELINES}))
def test_a_page_shows_the_forward_of_its_method(name):
    config = (METHODS | BASELINES)[name]
    class_name = inspect.signature(config.create).return_annotation
    method = getattr(sys.modules[config.__module__], class_name)
    page = Path(f"docs/methods/{name}.md")
    table = show_source((ROOT / page).read_text(), page)
    shown = " ".join(html.unescape(re.sub(r"<[^>]+>", "", table)).split())
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
    named = set(re.findall(r"--recipe (\w+\.\w+)", text))
    assert len(named) > 20
    assert {n for n in named if not n.endswith((".json", ".py"))} <= {*RECIPES, *ARMS}


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
    picture = (ROOT / "docs/architecture.svg").read_text()
    files = set(re.findall(r"[\w/]+\.py\b", page + picture.replace("NAME", "moco")))
    known = [f"/{path.as_posix()}" for path in (ROOT / "src/selfsight").rglob("*.py")]
    assert len(files) > 20
    assert {file for file in files if not any(k.endswith(f"/{file}") for k in known)} == set()


def test_the_architecture_page_shows_the_import_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    page = (ROOT / "docs/architecture.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0].splitlines()
    assert [line.split("  ")[0] for line in shown] == layers[1:]  # without __main__


def test_the_navigation_lists_every_page_and_no_other():
    """Pages of methods and commands join by themselves; docs/build.py lists them."""
    lines = yaml.safe_load((ROOT / "docs/site.yml").read_text())["nav"]
    listed = re.findall(r"[\w/-]+\.md", str(lines))
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    written = [page for page in pages if not page.startswith("methods/")]
    assert len(listed) == len(set(listed))
    missing = set(written) - set(listed)
    assert not missing, f"Add {missing} to nav in docs/site.yml"
    made = {"index.md", "contributing.md", "security.md", "changelog.md", "methods/index.md"}
    gone = {page for page in set(listed) - set(written) - made if "reference/" not in page}
    assert not gone, f"Remove {gone} from nav in docs/site.yml"


def test_every_link_of_a_page_has_a_file_in_the_repository():
    """Pages are read there too: none links to a page that only the site has."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([\w./-]+)(?=[)#])", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_a_note_without_a_line_is_an_error(repository):
    page = repository / "docs/methods/moco.md"
    replace_text(page, "`h, q1 = self.student(x1)`", "`h, q1 = gone(x1)`")
    with pytest.raises(UserError, match=r"moco.md has no note for the step `h, q1 = self.student"):
        show_moco(repository)
    replace_text(page, "| `h, q1 = gone", "| `h, q1 = self` | twice |\n| `gone")
    with pytest.raises(UserError, match=r"a note for `gone.x1.`, but no line of forward contains"):
        show_moco(repository)


def test_a_step_without_a_note_is_an_error(repository):
    source = repository / "src/selfsight/methods/moco.py"
    replace_text(source, "        h, q1 = self", "        x1 = x1.flip(3)\n        h, q1 = self")
    with pytest.raises(UserError, match=r"no note for the step `x1 = x1.flip\(3\)` of forward"):
        show_moco(repository)


def test_a_marker_of_an_unknown_class_is_an_error(repository):
    page = repository / "docs/methods/moco.md"
    replace_text(page, "methods.moco.MoCo", "methods.moco.Gone")
    with pytest.raises(UserError, match=r"methods/moco.py has no such function"):
        show_moco(repository)
