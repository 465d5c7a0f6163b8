"""Write the reference of the site from the code: commands, settings, recipes, Python, citations.

Nothing of it is committed: `docs/build.py` writes the pages anew in each build.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tyro

import selfsight
from selfsight import catalog
from selfsight.check_settings import Range
from selfsight.cli import cite, help_page
from selfsight.cli.main import COMMANDS
from selfsight.methods import base as method_settings
from selfsight.recipe import ALL_METHODS, Recipe

PARTS = ("methods", "losses", "nn", "optim", "views", "backbones")


def write_reference() -> dict[str, str]:
    """Write every page of the reference: its path in the site, and its Markdown."""
    pages = {
        "methods/index.md": write_methods(),
        "reference/commands.md": write_commands(),
        "reference/settings.md": write_settings(),
        "reference/recipes.md": write_recipes(),
        "reference/python.md": write_python(),
        "reference/parts.md": write_parts(),
    }
    return pages | {f"reference/commands/{name}.md": write_command(name) for name in COMMANDS}


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    clean = [[" ".join(_escape_pipes(cell).split()) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in clean) + "\n"


def _escape_pipes(text: str) -> str:
    """Escape what would begin a new cell; in code it does not."""
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or "\\|", text)


def write_commands() -> str:
    """Write the page that lists the commands."""
    rows = []
    for usage, text in help_page.COMMAND_LINES.items():
        name = usage.split()[0]
        if name in COMMANDS:
            rows.append([f"[`selfsight {usage}`](commands/{name}.md)", text])
    everywhere = [[f"`{flag}`", text] for flag, text in help_page.EVERYWHERE.items()]
    status = [[f"`{number}`", text] for number, text in help_page.EXIT_STATUS.items()]
    return (
        "# Commands\n\nEach page has the flags of a command, as `selfsight COMMAND --help` prints "
        "them. What is printed, and how errors read: [the command line](../commands.md).\n\n"
        + write_table(["command", "what it does"], rows)
        + "\n## With any command\n\n"
        + write_table(["flag", "what it does"], everywhere)
        + "\n## Exit status\n\n"
        + write_table(["status", "meaning"], status)
    )


def write_command(name: str) -> str:
    """Write the page of a command: usage, description and flags, read from its parser."""
    command = COMMANDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of get_parser
        parser = tyro.extras.get_parser(command, prog=f"selfsight {name}")
    about = help_page.describe_command(command).removesuffix(help_page.FOOTER).strip()
    arguments, flags = [], []
    for action in parser._actions:
        words = re.sub(r"\s*\((required|default: .*)\)\s*$", "", action.help or "", flags=re.DOTALL)
        default = re.search(r"\(default: (.*)\)\s*$", action.help or "", re.DOTALL)
        metavar = f" {action.metavar}" if action.metavar else ""
        if not action.option_strings:
            arguments.append([f"`{action.metavar}`", words])
        elif action.dest != "help":
            shown = "" if not default or default[1] == "False" else f"`{default[1]}`"
            flag = action.option_strings[default is not None and default[1] == "True"]
            flags.append([f"`{flag}{metavar}`", shown, words])
    usage = " ".join([f"selfsight {name}", *(row[0].strip("`") for row in arguments)])
    text = f"# selfsight {name}\n\n```sh\n{usage}{' [flags]' * bool(flags)}\n```\n\n{about}\n\n"
    if arguments:
        text += write_table(["argument", "meaning"], arguments) + "\n"
    if flags:
        text += "## Flags\n\n" + write_table(["flag", "default", "meaning"], flags)
    return text + "\nWith any command: `--quiet`, `--verbose`, `--help`.\n"


def write_methods() -> str:
    """Write the page that lists the methods."""
    rows = [
        [f"[`{row['name']}`]({row['name']}.md)", row["paper"], str(len(row["recipes"]))]
        for row in catalog.list_methods()
    ]
    return (
        "# Methods\n\nEach page has the idea, the equations, our code line by line, settings, "
        "recipes, where paper and code differ, published numbers and ours. `selfsight methods` "
        "prints this list, `selfsight methods NAME --cite` the BibTeX.\n\n"
        + write_table(["method", "paper", "recipes"], rows)
        + "\n[EqCo](eqco.md) is a rule for the number of negatives: the setting `alpha` of "
        "`moco`, `simclr` and `simo`. Which one to take: "
        "[choosing a method](../tutorial/choosing_a_method.md).\n"
    )


def write_method_parts(name: str) -> str:
    """Write what is added to the page of a method: settings, recipes, citation."""
    config = ALL_METHODS[name]
    ranges = method_settings.RANGES | config.ranges
    text = "\n## Settings\n\n" + describe(config)
    text += "\n" + _settings_table(config, "--method.", ranges)
    rows = [
        [f"`{row['name']}`", row["summary"], row["reference"] or ""]
        for row in catalog.list_recipes(f"{name}.")
        if row["method"] == name
    ]
    if rows:
        text += "\n## Recipes by name\n\n"
        text += write_table(["recipe", "what it is", "published"], rows)
    entries = "\n\n".join(cite.cite(name))
    return f"{text}\n## Cite\n\n`selfsight methods {name} --cite`\n\n```bibtex\n{entries}\n```\n"


def write_settings() -> str:
    """Write the page of the settings of a recipe, by part."""
    text = (
        "# Settings of a recipe\n\nEvery setting is a flag of `pretrain`, a key of a recipe file "
        'and a keyword of Python: `--optim.lr 0.3`, `**{"optim.lr": 0.3}`. '
        "`selfsight recipes NAME` prints the values of a recipe, `--save my.json` writes them to "
        "a file. Settings of a method are on [its page](../methods/index.md).\n"
    )
    parts: list[tuple[str, Any]] = [("", Recipe)]
    hints = typing.get_type_hints(Recipe)
    for name in ("backbone", "views", "optim", "data", "start"):
        cls, prefix = hints[name], f"{name}."
        if typing.get_origin(cls) is tuple:
            cls, prefix = typing.get_args(cls)[0], f"{name}.0."
        parts.append((prefix, cls))
        for field, inner in typing.get_type_hints(cls).items():
            if dataclasses.is_dataclass(inner):
                parts.append((f"{prefix}{field}.", inner))
    for prefix, cls in parts:
        title = f"{prefix[:-1].replace('.0', '')}: {cls.__name__}" if prefix else "The run"
        text += f"\n## {title}\n\n{describe(cls)}\n"
        ranges = getattr(inspect.getmodule(cls), "RANGES", {})
        text += _settings_table(cls, f"--{prefix}", ranges)
    return text


def write_recipes() -> str:
    """Write the page that lists the recipes."""
    text = (
        "# Recipes\n\nSettings with a name, those of the papers and of their code: "
        "`selfsight pretrain DATA --recipe NAME`. `selfsight recipes NAME` prints every setting. "
        "Published numbers have a source; ours are in the [results](../results.md).\n"
    )
    rows = catalog.list_recipes()
    for method in dict.fromkeys(row["method"] for row in rows):
        sizes = ("summary", "epochs", "batch_size", "reference")
        table = [
            [f"`{row['name']}`", *(str(row[size] or "") for size in sizes)]
            for row in rows
            if row["method"] == method
        ]
        text += f"\n## {method}\n\n[The method](../methods/{method}.md).\n\n"
        text += write_table(["recipe", "what it is", "epochs", "batch", "published"], table)
    return text


def write_python() -> str:
    """Write the page of the functions and options of `import selfsight`."""
    text = f"# Python\n\n```python\nimport selfsight\n```\n\n{_prose(inspect.getdoc(selfsight))}\n"
    names = [n for n in selfsight.__all__ if n not in PARTS and n != "__version__"]
    found = {name: getattr(selfsight, name) for name in names}
    functions = {n: v for n, v in found.items() if inspect.isfunction(v)}
    classes = {n: v for n, v in found.items() if inspect.isclass(v)}
    text += "\n## Functions\n" + "".join(_entry(n, v) for n, v in functions.items())
    text += "\n## Classes\n" + "".join(_entry(n, v) for n, v in classes.items())
    text += "\n## METHODS\n\nThe settings class of every method, by name.\n"
    return text


def write_parts() -> str:
    """Write the page of the parts that can be used alone."""
    text = (
        "# Parts\n\nFor your own training loop: [how to use them](../library.md). Shapes: N images "
        "of this process, G of all, D width, K queue.\n"
    )
    for part in PARTS:
        module = getattr(selfsight, part)
        text += f"\n## selfsight.{part}\n\n{_prose(inspect.getdoc(module))}\n"
        for name in list_public(module):
            text += _entry(name, getattr(module, name))
    return text


def list_public(module: types.ModuleType) -> list[str]:
    """List the functions and classes of a module, without those on the pages of the methods."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and name[0] != "_"
    ]
    of_methods = {inspect.getmodule(config) for config in ALL_METHODS.values()}
    found = {name: getattr(module, name) for name in names}
    return [
        name
        for name, value in found.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and inspect.getmodule(value) not in of_methods
    ]


def describe(cls: type) -> str:
    """The docstring of a class as Markdown, unless it is one that dataclass has written."""
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else _prose(text)


def list_fields(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """List name, type, default and meaning of a dataclass's fields, read from its source.

    The meaning is the text under a field, or the comment after it.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for owner in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        source = textwrap.dedent(inspect.getsource(owner))
        lines = source.splitlines()
        (node,) = ast.parse(source).body
        assert isinstance(node, ast.ClassDef)
        for index, line in enumerate(node.body):
            if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                continue
            after = node.body[index + 1] if index + 1 < len(node.body) else None
            note = _docstring(after)
            if not note:
                assert line.end_lineno is not None
                rest = lines[line.end_lineno - 1].encode()[line.end_col_offset :].decode()
                note = rest.partition("#")[2].strip()
            default = ast.unparse(line.value) if line.value else ""
            name, kind = line.target.id, ast.unparse(line.annotation)
            found[name] = (kind, default, note or found.get(name, ("", "", ""))[2])
    for field in dataclasses.fields(cls):
        if not found[field.name][0].startswith("Suppress["):  # for the code alone
            yield field.name, *found[field.name]


def _settings_table(cls: type, prefix: str, ranges: Mapping[str, Range]) -> str:
    declared = typing.get_type_hints(cls)
    rows = []
    for name, kind, default, note in list_fields(cls):
        if _holds_dataclass(declared[name]):
            continue  # a part with a table of its own
        choices = [
            str(value)
            for kind_ in (declared[name], *typing.get_args(declared[name]))
            if typing.get_origin(kind_) is typing.Literal
            for value in typing.get_args(kind_)
        ]
        allowed = ", ".join(choices) or (str(ranges[name]) if name in ranges else "")
        flag = f"`{prefix}{name.replace('_', '-')}`"
        kind = "name" if choices else kind
        rows.append([flag, f"`{kind}`", f"`{default}`" if default else "", allowed, note])
    return write_table(["flag", "type", "default", "allowed", "meaning"], rows)


def _holds_dataclass(kind: Any) -> bool:
    kinds = [kind, *typing.get_args(kind)]
    return any(inspect.isclass(k) and dataclasses.is_dataclass(k) for k in kinds)


def _docstring(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""  # type: ignore[union-attr]


def _entry(name: str, value: Callable[..., Any]) -> str:
    """Write a function or class: heading, signature, docstring, fields."""
    text = f"\n### {name}\n\n"
    if inspect.isclass(value):
        if dataclasses.is_dataclass(value):
            text += _prose(inspect.getdoc(value)) + "\n"
            rows = [
                [f"`{field}`", f"`{kind}`", f"`{default}`" if default else "", note]
                for field, kind, default, note in list_fields(value)
            ]
            return text + "\n" + write_table(["field", "type", "default", "meaning"], rows)
        start = value.__init__
        if isinstance(start, types.FunctionType) and start.__module__ == value.__module__:
            text += _signature(name, start)
    else:
        text += _signature(name, value)
    return text + _prose(inspect.getdoc(value)) + "\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A signature as the source has it, a line per parameter where it is long."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    node.args.args = [a for a in node.args.args if a.arg != "self"]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name[0] != "_" else ""
    arguments = ast.unparse(node.args)
    if len(name) + len(arguments) + len(returns) > 76:
        arguments = "\n    " + ",\n    ".join(_split_arguments(arguments)) + ",\n"
    arguments = re.sub(r"(: [^=,]+(?:\[[^=\]]*\])?[^=,]*)=", r"\1 = ", arguments)
    return f"```python\n{name}({arguments}){returns}\n```\n\n"


def _split_arguments(text: str) -> Iterator[str]:
    """Split at the commas that are in no bracket or string."""
    depth, start, quote = 0, 0, ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _prose(text: str | None) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    parts = []
    for paragraph in re.split(r"\n\n+", (text or "").strip()):
        first = paragraph.split("\n")[0]
        if first.startswith(">>> "):
            code = re.sub(r"  # doctest:.*", "", paragraph)
            has_output = not all(line[:4] in (">>> ", "... ") for line in code.split("\n"))
            bare = re.sub(r"^(>>>|\.\.\.) ", "", code, flags=re.MULTILINE)
            parts.append(f"```pycon\n{code}\n```" if has_output else f"```python\n{bare}\n```")
        elif re.match(r"[a-z]\w* = \w+\.", first):  # lines of code
            parts.append(f"```python\n{paragraph}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts) + "\n"
