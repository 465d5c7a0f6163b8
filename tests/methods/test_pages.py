"""A page that explains a method's forward quotes lines that are in its source."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("instdisc", "jcl", "moco", "simclr", "simo")


@pytest.mark.parametrize("name", PAGES)
def test_every_line_that_a_page_explains_is_in_the_source(name):
    page = (ROOT / f"docs/methods/{name}.md").read_text()
    source = (ROOT / f"src/sightline/methods/{name}.py").read_text()
    part = page.split("## Our forward")[1].split("\n## ")[0]
    quoted = re.findall(r"^\| `(.+?)` \| ", part, re.MULTILINE)
    assert len(quoted) >= 4
    assert [line for line in quoted if line not in source] == []
