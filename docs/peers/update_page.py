"""Run the scripts of docs/peers.md twice each, and write what they print into the page.

`git diff docs/peers.md` then shows what has changed. A script that prints something else the second
time is an error. Names of scripts as arguments run those alone.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.with_suffix(".md")
SCRIPT = re.compile(r"`peers/(\w+)\.py`")
BLOCK = re.compile(r"```text\n.*?```", re.DOTALL)
LOGGED = re.compile(r"^.* \| (DEBUG|INFO|WARNING) .*\n", re.MULTILINE)


def run(name: str) -> str:
    """Return what a script prints, without what loggers and warnings say."""
    command = [sys.executable, "-W", "ignore", FOLDER / f"{name}.py"]
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    first, second = (LOGGED.sub("", text) for text in printed)
    if first != second:
        raise SystemExit(f"{name}.py printed, the first time\n{first}and then\n{second}")
    return first


def update(section: str, chosen: list[str]) -> str:
    """Replace the blocks of a section by what the scripts of its heading print, in order."""
    names = SCRIPT.findall(section.split("\n")[0])
    blocks = BLOCK.findall(section)
    assert len(names) == len(blocks), f"{names} have {len(blocks)} blocks"
    for name, block in zip(names, blocks, strict=True):
        if not chosen or name in chosen:
            section = section.replace(block, f"```text\n{run(name)}```")
            print(name, flush=True)
    return section


if __name__ == "__main__":
    sections = re.split(r"^(?=##)", PAGE.read_text(), flags=re.MULTILINE)
    PAGE.write_text("".join(update(section, sys.argv[1:]) for section in sections))
