from dataclasses import asdict
from json import dumps

import pytest

from selfsight.data import data_summary
from selfsight.data.pixel_statistics import MIN_COMPARED
from tests.data.image_files import parquet, pixels, png, write


@pytest.fixture
def folder(tmp_path):
    for i, size in enumerate([(10, 20), (30, 40), (50, 60)]):
        write(tmp_path / f"{i}.png", pixels(*size, seed=i))
    (tmp_path / "again.png").write_bytes(png(pixels(30, 40, seed=1)))
    (tmp_path / "broken.jpg").write_bytes(b"no")
    return tmp_path


def test_an_examination_tells_what_is_there(folder):
    found = data_summary.inspect_data(folder)
    assert (found.count, found.sampled) == (5, 5)
    assert (found.smallest, found.largest) == ((20, 10), (60, 50))
    assert (found.short_side, found.channels, found.classes) == (30, 3, 0)
    assert found.modes == {"RGB": 4}
    assert found.unreadable == (("broken.jpg", "not an image that Pillow can read"),)
    assert found.duplicates == (("1.png", "again.png"),)
    mean = 3 * (200 + 1200 + 1200 + 3000) / 4
    assert found.bytes_in_memory == int(mean * 5) and found.fits_in_memory


def test_an_examination_is_json_and_words(folder):
    found = data_summary.inspect_data(folder)
    dumps(asdict(found))
    words = "\n".join(data_summary.describe(found))
    for part in ("5 images", "20x10 to 60x50", "broken.jpg", "1.png = again.png"):
        assert part in words


def test_gray_images_have_one_channel(tmp_path):
    write(tmp_path / "1.png", pixels()[..., 0])
    assert data_summary.inspect_data(tmp_path).channels == 1
    write(tmp_path / "2.png", pixels())
    assert data_summary.inspect_data(tmp_path).channels == 3


def test_a_sample_is_part_of_the_whole(tmp_path):
    file = parquet(tmp_path / "x.parquet", [pixels(seed=i) for i in range(40)], [0] * 40, ["a"])
    found = data_summary.inspect_data(file, sample=8)
    assert (found.count, found.sampled, found.classes) == (40, 8, 1)
    assert found.duplicates == ()


def test_digits_have_no_mirror_images_and_of_few_none_is_said():
    assert not data_summary.inspect_data("digits", sample=128).mirrored
    assert data_summary.inspect_data("digits", sample=MIN_COMPARED - 1).mirrored


def test_things_that_look_to_either_side_have_mirror_images(tmp_path):
    things = [pixels(16, 16, seed=i) for i in range(MIN_COMPARED)]
    for i, thing in enumerate(things):
        thing[:, 8 * (i % 2) : 8 * (i % 2) + 8] //= 8  # the left or the right half is dark
        write(tmp_path / f"{i}.png", thing)
    assert data_summary.inspect_data(tmp_path).mirrored
