"""Show a function of the source in a page, with a note next to each step.

A page of a method has a marker

    <!-- forward: selfsight.methods.moco.MoCo -->

and under it a table with notes. The marker is replaced by that class's `forward`, or by the method
or function that it names, read from the source. Each note is shown next to the line that contains
its first column. A note without a line is an error, and so is a step without a note.
"""

import ast
import html
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from selfsight.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"<!-- forward: (?P<name>[\w.]+) -->\n(?P<notes>(?:\|.*\n)*)")
NOTE = re.compile(r"^\| `(?P<part>.+?)` \| (?P<words>.+) \|$", re.MULTILINE)
BARE = HtmlFormatter(nowrap=True)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Lines of source that form one step, and a note on what they compute."""

    first: int  # counted from 1
    last: int
    words: str = ""


def show_source(text: str, page: Path, root: Path = ROOT) -> str:
    """Replace each marker of a page by a table of the source that it names."""
    text = MARKER.sub(lambda found: render_source(found["name"], found["notes"], page, root), text)
    if "<!-- forward:" in text:
        raise UserError(
            f"{page} has a forward marker that cannot be parsed. Write it on a separate "
            "line as `<!-- forward: selfsight.methods.NAME.Class -->`."
        )
    return text


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
        note = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(line.words, quote=False))
        rows.append(f"<tr><td><pre>{blocks}</pre></td><td>{note}</td></tr>")
    head = "<thead><tr><th>code</th><th>equation</th></tr></thead>"
    table = f'<div class="forward"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
    return f"`{path.as_posix()}`\n\n{table}\n\n"


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
