"""Our reader of tar headers against Python's."""

import io
import tarfile

import pytest

from selfsight.data.sources.tar_members import TarDamageError, read_members

NAMES = ("a.jpg", "f/" * 60 + "b.jpg", "ü" * 90 + ".png", "x" * 300 + ".jpg", "c")


def write_tar(form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for size, name in enumerate(NAMES, start=510):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes([size % 251]) * size))
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
                other = tarfile.TarInfo(f"{name[:40]}.{kind.decode()}")
                other.type, other.linkname = kind, "a.jpg"
                tar.addfile(other)
    return out.getvalue()


def python_members(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile(form):
    data = write_tar(form)
    ours = [member[:3] for member in read_members(io.BytesIO(data))]
    assert ours == python_members(data) and [name for name, *_ in ours] == list(NAMES)


def test_ustar_and_large_sizes_are_those_of_tarfile():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("f/" * 60 + "b.jpg"))
    assert [m[:3] for m in read_members(out)] == python_members(out.getvalue())


@pytest.mark.parametrize("size", [-512, -1, -(2**63), 2**62, 2**80])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_size_that_cannot_be_is_damage(size, kind):
    info = tarfile.TarInfo("a.jpg")
    info.size, info.type = size, kind
    data = write_tar(tarfile.GNU_FORMAT)[:-1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    with pytest.raises(TarDamageError):
        list(read_members(io.BytesIO(data)))


def test_sparse_members_are_known_as_such():
    info = tarfile.TarInfo("a.jpg")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # another block of the map follows
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
    last = tarfile.TarInfo("b.jpg").tobuf(tarfile.GNU_FORMAT)
    data = bytes(header) + bytes(512) + bytes(512) + last + bytes(1024)
    assert [(m.name, m.is_sparse) for m in read_members(io.BytesIO(data))] == [
        ("a.jpg", True),
        ("b.jpg", False),
    ]
