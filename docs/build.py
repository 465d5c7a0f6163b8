"""Build the site of the documentation: `python -m docs.build [FOLDER]`, or `make docs` for site/.

The pages are the Markdown files of the repository and pages made from the code (docs/reference.py).
They are first written as plain Markdown, with equations as MathML and links that are right in the
site, and then built by Zensical. Any generator that reads Markdown could take its place.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from docs.annotated_source import show_source
from docs.reference import write_method_parts, write_reference
from latex2mathml.converter import convert

from selfsight.cli.main import COMMANDS
from selfsight.errors import UserError
from selfsight.recipe import ALL_METHODS

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Pages of the repository's root, and their paths in the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
COPIED = (".svg", ".png", ".css", ".js", ".woff2", ".LICENSE")
LINK = re.compile(r"(?<=\]\()(?P<path>[\w./-]+)(?=[)#])")
EQUATION = re.compile(r"^```math\n(?P<latex>.*?)\n```$", re.DOTALL | re.MULTILINE)


def build(out: Path) -> int:
    """Build the site into a folder; return the number of its pages."""
    pages, config = write_pages(), read_config()
    check_navigation(config["nav"], pages)
    files = {p.relative_to(DOCS): p for p in DOCS.rglob("*") if p.suffix in COPIED}
    render(pages, files, config, out)
    return len(pages)


def render(
    pages: Mapping[str, str], files: Mapping[Path, Path], config: dict[str, Any], out: Path
) -> None:
    """Turn pages and the files that they show into a site; a broken link is a UserError."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "docs")
        for target in (*pages, *files):
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
        for page, text in pages.items():
            (folder / page).write_text(text, encoding="utf-8")
        for target, path in files.items():
            shutil.copyfile(path, folder / target)
        Path(work, "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=work,
            env=os.environ | {"NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).split("Traceback")[0]
            raise UserError(f"The site was not built.\n{said}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(work, "site"), out)


def read_config() -> dict[str, Any]:
    """Read docs/site.yml, and list the methods and commands in its navigation."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "docs/site.yml").read_text(encoding="utf-8"))
    sections = {title: pages for item in config["nav"] for title, pages in item.items()}
    methods = sorted(path.stem for path in (DOCS / "methods").glob("*.md"))
    sections["Methods"] += [{name: f"methods/{name}.md"} for name in methods]
    commands = next(item for item in sections["Reference"] if "Commands" in item)
    commands["Commands"] += [{name: f"reference/commands/{name}.md"} for name in COMMANDS]
    return config


def write_pages() -> dict[str, str]:
    """Write all pages as plain Markdown: path in the site, and text."""
    pages = dict(write_reference())
    sources = [*ROOT_PAGES, *(f"docs/{p.relative_to(DOCS).as_posix()}" for p in DOCS.rglob("*.md"))]
    for source in sources:
        text = show_source((ROOT / source).read_text(encoding="utf-8"), Path(source))
        if source.startswith("docs/methods/") and Path(source).stem in ALL_METHODS:
            text += write_method_parts(Path(source).stem)
        page = ROOT_PAGES.get(source, source.removeprefix("docs/"))
        pages[page] = rewrite_links(typeset(text), source, page)
    return pages


def rewrite_links(text: str, source: str, page: str) -> str:
    """Turn links that are right in the repository into links that are right in the site."""

    def rewrite(link: re.Match[str]) -> str:
        found = os.path.normpath(PurePosixPath(source).parent / link["path"])
        if (ROOT / found).is_dir():
            found += "/index.md"
        if found in ROOT_PAGES:
            found = f"docs/{ROOT_PAGES[found]}"
        if not found.startswith("docs/"):
            return link["path"]
        return os.path.relpath(found, PurePosixPath("docs", page).parent)

    return LINK.sub(rewrite, text)


def typeset(text: str) -> str:
    """Turn equations in LaTeX into MathML, which browsers show without a script or a font."""
    return EQUATION.sub(lambda found: convert(found["latex"], display="block"), text)


def check_navigation(nav: list[Any], pages: Iterable[str]) -> None:
    """Raise a UserError for a page that is not in the navigation, and for a line without a page."""
    listed = list(list_leaves(nav))
    for page in sorted(set(pages) - set(listed)):
        raise UserError(f"{page} is in no place of the navigation. Add it to docs/site.yml.")
    for page in sorted(set(listed) - set(pages)):
        raise UserError(f"docs/site.yml lists {page}, which is not a page. Remove it there.")


def list_leaves(nav: Any) -> Iterator[str]:
    """List the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from list_leaves(item)


def main() -> int:
    """Build into the folder given as argument, or into site/."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        count = build(out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} pages; open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
