"""Audit the dependencies: known vulnerabilities of the pinned versions, and their licenses.

`make audit` asks osv.dev about every version of constraints.txt. An audit that could audit nothing
fails: without an answer, with an answer for fewer packages, and if the service does not know a
version that is known to be vulnerable, whose silence about others would mean nothing.
`--licenses` needs no network: it prints the table of docs/dependencies.md.
"""

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVICE = "https://api.osv.dev/v1/querybatch"
CONTROL = ("pillow", "8.0.0")  # has dozens of published vulnerabilities
TIMEOUT = 30  # seconds
NAME = re.compile(r"[A-Za-z0-9._-]+")


class AuditError(Exception):
    """The audit found a vulnerability, or could not audit."""


def normalized(name: str) -> str:
    """Return the name as package indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """Return the version of each package of a constraints file."""
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    pins = [line.partition("==") for line in lines if "==" in line]
    return {normalized(name): version for name, _, version in pins}


def find_vulnerabilities(pins: Mapping[str, str], service: str) -> dict[str, list[str]]:
    """Return the identifiers of the known vulnerabilities of each package that has some."""
    if not pins:
        raise AuditError("There is no version to audit: constraints.txt pins none.")
    asked = [CONTROL, *pins.items()]
    queries = [{"package": {"name": n, "ecosystem": "PyPI"}, "version": v} for n, v in asked]
    request = urllib.request.Request(
        service, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            results = json.load(answer)["results"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AuditError(
            f"Nothing was audited: {service} gave no usable answer ({error}). Repeat it where "
            "that service can be reached."
        ) from error
    if len(results) != len(asked):
        raise AuditError(
            f"Nothing was audited: {service} answered {len(results)} of {len(asked)} questions."
        )
    found = [[v["id"] for v in (result or {}).get("vulns") or []] for result in results]
    if not found[0]:
        raise AuditError(
            f"Nothing was audited: {service} knows no vulnerability of {' '.join(CONTROL)}, which "
            "has dozens, so its silence about other versions means nothing."
        )
    return {name: ids for name, ids in zip(pins, found[1:], strict=True) if ids}


def runtime_dependencies(name: str = "selfsight") -> set[str]:
    """Return the installed packages that a package needs, without its extras."""
    found: set[str] = set()
    todo = [name]
    while todo:
        try:
            requirements = metadata.requires(todo.pop()) or []
        except metadata.PackageNotFoundError:  # for another platform
            continue
        plain = [r for r in requirements if "extra ==" not in r]
        names = {normalized(match[0]) for r in plain if (match := NAME.match(r))}
        todo += names - found
        found |= names
    return found


def license_of(name: str) -> str:
    """Return the license that a package states."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed here"
    classifiers = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    named = [c.rpartition(" :: ")[2] for c in classifiers]
    text = (about.get("License") or "").strip().splitlines()
    short = [line for line in text[:1] if len(line) < 60]
    stated = [about.get("License-Expression"), *short, ", ".join(named)]
    return next((s for s in stated if s and s != "OSI Approved"), "not stated")


def format_licenses(pins: Mapping[str, str]) -> str:
    """Return the table of all packages: those that selfsight needs first."""
    needed = runtime_dependencies()
    order = sorted(pins, key=lambda name: (name not in needed, name))
    rows = [
        f"| {name} | {license_of(name)} | {'use' if name in needed else 'development'} |"
        for name in order
    ]
    return "\n".join(["| package | license | for |", "|---|---|---|", *rows])


def main(words: Sequence[str] | None = None) -> None:
    """Audit, or print the licenses; exit with 1 and a sentence if the audit fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--licenses", action="store_true", help="print the licenses, as Markdown")
    parser.add_argument("--service", default=SERVICE, help="address of the service")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    options = parser.parse_args(words)
    pins = read_pins(options.constraints)
    if options.licenses:
        print(format_licenses(pins))
        return
    try:
        vulnerable = find_vulnerabilities(pins, options.service)
    except AuditError as error:
        sys.exit(f"audit: {error}")
    for name, ids in vulnerable.items():
        print(f"{name} {pins[name]}: {', '.join(ids)} (https://osv.dev/{ids[0]})")
    if vulnerable:
        sys.exit(
            f"audit: {len(vulnerable)} of {len(pins)} packages have known vulnerabilities. Raise "
            "their versions in constraints.txt and pyproject.toml, or say in SECURITY.md why not."
        )
    print(f"audit: {len(pins)} packages, no known vulnerability ({options.service}).")


if __name__ == "__main__":
    main()
