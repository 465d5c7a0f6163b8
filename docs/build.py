"""Build the documentation: `python docs/build.py [FOLDER]`, or `make docs` for site/.

Every page is a Markdown file of the repository. A page of a method has a marker

    <!-- forward: selfsight.methods.moco.MoCo -->

and under it a table with notes. The marker is replaced by that class's `forward`, or by the method
or function that it names, read from the source. Each note is shown next to the line that contains
its first column. The build fails for a note without a line, and for a step without a note.
"""

import ast
import html
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, get_lexer_by_name
from pygments.util import ClassNotFound

from selfsight.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"<!-- forward: (?P<name>[\w.]+) -->\n(?P<notes>(?:\|.*\n)*)")
NOTE = re.compile(r"^\| `(?P<part>.+?)` \| (?P<words>.+) \|$", re.MULTILINE)
BARE = HtmlFormatter(nowrap=True)
# Guides in the order of the navigation; others follow by name.
FIRST = (
    "architecture",
    "library",
    "data",
    "evaluation",
    "studies",
    "performance",
    "results",
    "reliability",
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A Markdown file and its place in the site."""

    source: Path  # relative to the repository
    title: str
    text: str

    @property
    def target(self) -> Path:
        """Path in the site: the same path with the suffix .html."""
        if self.source == Path("README.md"):
            return Path("index.html")
        return self.source.with_suffix(".html")


@dataclass(frozen=True, kw_only=True)
class Line:
    """Lines of source that form one step, and a note on what they compute."""

    first: int  # counted from 1
    last: int
    words: str = ""


def build(out: Path, root: Path = ROOT) -> list[Path]:
    """Write the site and return its pages."""
    pages = [*collect_pages(root), build_methods_page(root)]
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "docs" / "style.css", out / "style.css")
    for image in (p for p in (root / "docs").rglob("*") if p.suffix in (".svg", ".png")):
        target = out / image.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, target)
    for page in pages:
        target = out / page.target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render_page(page, pages, root), encoding="utf-8")
    return [page.target for page in pages]


def collect_pages(root: Path) -> list[Page]:
    """List the pages of the repository root and of docs/, in the order of the navigation."""
    found = [Path(f"{name}.md") for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
    found += sorted(path.relative_to(root) for path in (root / "docs").rglob("*.md"))
    pages = []
    for source in found:
        text = (root / source).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        if title is None:
            raise UserError(f"{source} has no title. Begin it with a line `# Title`.")
        pages.append(Page(source=source, title=title[1], text=text))
    return pages


def build_methods_page(root: Path) -> Page:
    """Build the page that lists the methods, which has no Markdown file."""
    methods = [page for page in collect_pages(root) if page.source.parent == Path("docs/methods")]
    rows = [f"- [{page.title}]({page.source.name})" for page in methods]
    text = "# Methods\n\n" + "\n".join(rows) + "\n"
    return Page(source=Path("docs/methods/index.md"), title="Methods", text=text)


def render_page(page: Page, pages: list[Page], root: Path) -> str:
    """Render a page with head and navigation."""
    up = "../" * (len(page.target.parts) - 1)
    parts = {
        "title": html.escape(page.title),
        "up": up,
        "navigation": render_navigation(page, pages, up),
        "body": render_body(page, root),
    }
    template = (ROOT / "docs" / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def render_navigation(here: Page, pages: list[Page], up: str) -> str:
    """Render links to all pages, in groups; the current page is marked."""

    def order(page: Page) -> tuple[int, str]:
        name = page.source.stem
        return (FIRST.index(name) if name in FIRST else len(FIRST), name)

    folders = sorted({page.source.parent for page in pages if page.source.parts[0] == "docs"})
    groups = [("", [page for page in pages if page.target == Path("index.html")])]
    for folder in folders:
        members = [page for page in pages if page.source.parent == folder]
        title = "Guides" if folder == Path("docs") else folder.name.capitalize()
        groups.append((title, sorted(members, key=order)))
    own = [page for page in pages if page.source.parent == Path(".") and page not in groups[0][1]]
    groups.append(("Project", own))
    out = []
    for title, members in groups:
        out.append(f"<h2>{title}</h2>" if title else "")
        links = []
        for page in members:
            if page.source.name == "index.md":
                continue  # its group is right there
            mark = ' aria-current="page"' if page.target == here.target else ""
            short = page.title.partition(":")[0]
            link = f'<a href="{up}{page.target.as_posix()}"{mark}>{html.escape(short)}</a>'
            links.append(f"<li>{link}</li>")
        out.append(f"<ul>{''.join(links)}</ul>")
    return "".join(out)


def render_body(page: Page, root: Path) -> str:
    """Render a page's text as HTML, with each marker replaced by the source that it names."""
    forwards: dict[str, str] = {}

    def replace_marker(match: re.Match[str]) -> str:
        comment = f"<!-- forward {len(forwards)} -->"
        forwards[comment] = render_source(match["name"], match["notes"], page.source, root)
        return comment + "\n\n"

    text = MARKER.sub(replace_marker, page.text)
    if "<!-- forward:" in text:
        raise UserError(
            f"{page.source} has a forward marker that cannot be parsed. Write it on a separate "
            "line as `<!-- forward: selfsight.methods.NAME.Class -->`."
        )
    rendered = markdown().render(text)
    for comment, table in forwards.items():
        rendered = rendered.replace(comment, table)
    return rendered


@cache
def markdown() -> MarkdownIt:
    """Render Markdown with tables, anchors of headings, scrolling tables and links to pages."""
    md = MarkdownIt("commonmark", {"highlight": highlight_code}).enable("table")
    md.core.ruler.push("anchors", lambda state: add_anchors(state.tokens))
    md.core.ruler.push("links", lambda state: rewrite_links(state.tokens))
    md.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return md


def add_anchors(tokens: list[Token]) -> None:
    """Give every heading an id derived from its text."""
    for opened, inline in pairwise(tokens):
        if opened.type == "heading_open":
            opened.attrSet("id", re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-"))


def rewrite_links(tokens: list[Token]) -> None:
    """Turn links to Markdown files and folders into links to their pages."""
    for token in tokens:
        rewrite_links(token.children or [])
        link = str(token.attrGet("href") or "") if token.type == "link_open" else ""
        if not link or re.match(r"[a-z]+:|#", link):
            continue
        path, mark, place = link.partition("#")
        if path.endswith(".md"):
            path = path.removesuffix(".md") + ".html"
        elif not Path(path).suffix:
            path = path.rstrip("/") + "/index.html"
        token.attrSet("href", path + mark + place)


def highlight_code(code: str, language: str, _: object) -> str:
    """Highlight code by its language; plain text if none is given."""
    try:
        lexer = get_lexer_by_name(language) if language else None
    except ClassNotFound:
        lexer = None
    return highlight(code, lexer, BARE) if lexer else html.escape(code)


def render_source(name: str, notes: str, page: Path, root: Path) -> str:
    """Render two columns: the source of a function, and a note next to each step."""
    *modules, owner, last = name.split(".")
    if not owner[0].isupper():  # a class or a function of a module, not a method of a class
        modules, owner = [*modules, owner], last
    path = Path("src", *modules).with_suffix(".py")
    if not (root / path).exists():
        raise UserError(f"{page} has a marker for {name}, but there is no {path}.")
    source = (root / path).read_text(encoding="utf-8")
    function = find_function(source, owner, "forward" if owner == last else last)
    if function is None:
        raise UserError(f"{page} has a marker for {name}, but {path} has no such function.")
    words = {collapse_spaces(note["part"]): note["words"] for note in NOTE.finditer(notes)}
    lines = annotate(source, function, words, page)

    body_lines = source.splitlines()[function.lineno - 1 : function.end_lineno]
    shown = highlight(textwrap.dedent("\n".join(body_lines)), PythonLexer(), BARE).splitlines()
    rows = []
    for line in lines:
        code = shown[line.first - function.lineno : line.last - function.lineno + 1]
        # A block for each line: one that is too long wraps with an indent.
        blocks = "".join(f'<span class="line">{one or " "}</span>' for one in code)
        note = markdown().renderInline(line.words)
        rows.append(f"<tr><td><pre>{blocks}</pre></td><td>{note}</td></tr>")
    head = "<thead><tr><th>code</th><th>equation</th></tr></thead>"
    where = f"<p><code>{path.as_posix()}</code></p>"
    return f'{where}<div class="wide forward"><table>{head}{"".join(rows)}</table></div>'


def find_function(source: str, name: str, method: str) -> ast.FunctionDef | None:
    """Find the function of this name, or this method of the class of this name."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == method:
                    return item
    return None


def annotate(
    source: str, function: ast.FunctionDef, words: dict[str, str], page: Path
) -> list[Line]:
    """Split a function into its lines, with the notes of its steps."""
    lines, left = source.splitlines(), dict.fromkeys(words)
    found: list[Line] = []
    for statement in list_statements(function):
        text = collapse_spaces("\n".join(lines[statement.lineno - 1 : statement.end_lineno]))
        fitting = [part for part in words if part in text]
        if len(fitting) > 1:
            raise UserError(f"{page} has {len(fitting)} notes for the line `{text}`. Keep one.")
        if not fitting and computes(statement):
            raise UserError(
                f"{page} has no note for the step `{text}` of {function.name}. Add a row to the "
                "table under the marker: | `part of the line` | what it computes |"
            )
        for part in fitting:
            left.pop(part, None)
        note = words[fitting[0]] if fitting else ""
        assert statement.end_lineno is not None, "parsed from text"
        found.append(Line(first=statement.lineno, last=statement.end_lineno, words=note))
    if left:
        raise UserError(
            f"{page} has a note for `{next(iter(left))}`, but no line of {function.name} "
            "contains that. Copy the first column from the source."
        )
    return add_lines_between(found, function)


def add_lines_between(found: list[Line], function: ast.FunctionDef) -> list[Line]:
    """Add the lines between the steps: headers, comments, the docstring."""
    out, at = [], function.lineno
    for line in found:
        out += [Line(first=n, last=n) for n in range(at, line.first)]
        out.append(line)
        at = line.last + 1
    return out


def list_statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """List the statements of a function; blocks are replaced by their contents."""
    plain = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    plain = [node for node in plain if not hasattr(node, "body") and not _is_docstring(node)]
    return sorted(plain, key=lambda node: node.lineno)


def computes(statement: ast.stmt) -> bool:
    """Return whether a statement computes; plain assignments and returns are not steps."""
    if isinstance(statement, ast.Assert | ast.Raise):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.BinOp):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in ("Step", "getattr"):
            return True
    return False


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def collapse_spaces(text: str) -> str:
    """Collapse whitespace, so that a call over several lines can be quoted on one."""
    return " ".join(text.split())


def main() -> int:
    """Build into the folder given as argument, or into site/."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        pages = build(out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(pages)} pages in {out}; open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
