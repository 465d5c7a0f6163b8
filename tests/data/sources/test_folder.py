"""Names of files in a folder."""

import tracemalloc

import pytest

from selfsight.data import open_source
from selfsight.data.sources import folder


def test_names_of_a_folder_are_kept_as_one_text(tmp_path):
    """In order, by any number; and many of them in a fraction of the memory of strings."""
    paths = ["a/one.png", "a/\udcff.png", "b.png", "Ünï.png"]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode("utf-8", "surrogateescape"))
    source = open_source(tmp_path)
    expected = sorted(paths)
    shown = [path.replace("\udcff", "\ufffd") for path in expected]
    assert list(source.names) == shown and source.names[-1] == shown[-1]
    for i, path in enumerate(expected):
        assert source.local_path(i) == str(tmp_path / path)
        assert source.read(i) == path.encode("utf-8", "surrogateescape")
    with pytest.raises(IndexError):
        source.read(len(source))
    names = [f"{i:05}/photo_{i:010}.png" for i in range(20_000)]
    tracemalloc.start()
    files = folder._LocalFiles(tmp_path, names)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert files[12_345].path == str(tmp_path / names[12_345]) and size < 40 * len(names)
