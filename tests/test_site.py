"""`make docs`: the site has every page of the code, whole links, and asks no other host."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import selfsight
from selfsight.cli.main import COMMANDS
from selfsight.cli.split_settings import list_flags
from selfsight.errors import UserError
from selfsight.recipes import RECIPES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from docs.build import build  # needs packages that only the documentation needs

    out = tmp_path_factory.mktemp("docs") / "site"
    build(out)
    return out


class Page(HTMLParser):
    """What a page links to and loads, and the ids in it that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id", ""))
        found = [given[key] for key in ("href", "src") if given.get(key)]
        self.links += found
        self.loads += [] if tag == "a" else found


def read_text(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page.read_text()))


def test_links_have_targets_and_nothing_is_loaded_from_another_host(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 60
    for path, page in pages.items():
        assert not [link for link in page.loads if re.match(r"(https?:)?//", link)], path
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not anchor or target not in pages or anchor in pages[target].ids, link
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style


def test_the_reference_has_every_command_flag_recipe_and_public_name(site):
    for name, command in COMMANDS.items():
        shown = read_text(site / f"reference/commands/{name}.html")
        for flag in list_flags(command):
            assert re.search(rf"{flag}\b|--no-{flag[2:]}\b", shown), f"{name} {flag}"
    assert not [p.name for p in (site / "reference").rglob("*.html") if "\\|" in read_text(p)]
    recipes = read_text(site / "reference/recipes.html")
    assert {name for name in RECIPES if name not in recipes} == set()
    ids = Page(site / "reference/python.html").ids | Page(site / "reference/parts.html").ids
    names = {name for name in selfsight.__all__ if name != "__version__"}
    modules = {name for name in names if not isinstance(getattr(selfsight, name), type)}
    modules = {name for name in modules if hasattr(getattr(selfsight, name), "__path__")}
    assert {name.lower() for name in names - modules} <= ids
    assert {f"selfsight{name}" for name in modules} <= ids


def test_equations_are_typeset(site):
    shown = [(path, path.read_text()) for path in (site / "methods").glob("*.html")]
    count = sum(text.count("<math") for _, text in shown)
    written = Path(__file__).parents[1].glob("docs/methods/*.md")
    assert count == sum(path.read_text().count("```math") for path in written) > 40
    for path, text in shown:
        for equation in re.findall(r"<math.*?</math>", text, re.DOTALL):
            left = re.sub(r"<annotation.*?</annotation>", "", equation, flags=re.DOTALL)
            assert "\\" not in left, f"{path.name}: {equation}"  # a command that was not known


def test_a_broken_link_and_a_page_in_no_place_are_errors(tmp_path):
    from docs.build import check_navigation, render

    config = {"site_name": "x", "nav": [{"Home": "index.md"}]}
    with pytest.raises(UserError, match=r"page does not exist"):
        render({"index.md": "# A\n\n[b](gone.md)\n"}, {}, config, tmp_path / "site")
    with pytest.raises(UserError, match=r"b.md is in no place of the navigation"):
        check_navigation(config["nav"], ["index.md", "b.md"])
    with pytest.raises(UserError, match=r"lists index.md, which is not a page"):
        check_navigation(config["nav"], [])


@pytest.fixture
def tab(browser):
    """A tab without a network, and what its pages asked for or complained about."""
    context = browser.new_context(offline=True)
    tab, complaints = context.new_page(), []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda asked: asked.url.startswith("http") and complaints.append(asked.url))
    yield tab, complaints
    context.close()


@pytest.mark.browser
def test_from_a_disk_and_without_a_network_search_finds_a_page(site, tab):
    tab, complaints = tab
    tab.goto((site / "index.html").as_uri())
    tab.keyboard.press("Control+k")
    tab.keyboard.type("shuffled BN")
    tab.get_by_text("Where paper and released code differ").first.wait_for()
    tab.goto((site / "methods/moco.html").as_uri())
    assert tab.locator("math").first.bounding_box()["height"] > 30  # a fraction, typeset
    assert tab.evaluate("document.fonts.check('16px \"STIX Two Math\"')")
    assert not complaints
