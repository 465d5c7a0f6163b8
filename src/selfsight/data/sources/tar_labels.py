"""Labels of tar shards: the class of an image in key.cls, key.json or key.txt; not captions."""

import json
from typing import Any

from selfsight.data.sources.source import clean

MAX_CLASSES = 1000  # more texts than this, most of them unique, are captions and not classes
MAX_TEXTS, MAX_TEXT_CHARACTERS = 1_000_000, 1 << 28  # of different texts that are counted
MAX_LABEL_BYTES = 4 << 20  # of a file beside an image
LABEL_KEYS = ("label", "cls", "class", "class_name", "class_id")  # of a JSON file
LABEL_SUFFIXES = ("cls", "json", "txt")


class ClassCounter:
    """Number the classes of all images as they appear, up to a limit of memory."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.characters = 0

    def add(self, class_name: str | None) -> None:
        """Number the class of an image, if it is a new one."""
        if class_name is not None and not self.too_many:
            self.characters += 0 if class_name in self.numbers else len(class_name)
            self.numbers.setdefault(class_name, len(self.numbers))

    @property
    def too_many(self) -> bool:
        """Whether there are more different texts than are counted."""
        return len(self.numbers) > MAX_TEXTS or self.characters > MAX_TEXT_CHARACTERS

    def are_captions(self, images: int) -> bool:
        """Whether the texts beside so many images are captions and not classes: most are unique."""
        return self.too_many or (len(self.numbers) > MAX_CLASSES and 2 * len(self.numbers) > images)


def parse_class(suffix: str, content: bytes) -> str | None:
    """Read the class from the content of a file beside an image; None if it names none."""
    text = content.decode("utf-8", "replace").strip()
    if suffix != "json":
        return text or None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = next((value[k] for k in LABEL_KEYS if k in value), None)
    if not isinstance(value, str | int):
        return None
    return clean(value) or None
