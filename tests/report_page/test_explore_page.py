"""The page of `selfsight explore` in a real browser, cut off from any network."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Page as Tab

from selfsight.report_page.explore_page import Group, MapPage, Thumbnails, write_page
from tests.report_page.browser_window import Window
from tests.report_page.folders import HOSTILE, tile_color

pytestmark = pytest.mark.browser
COUNT, MARGIN = 300, 26  # images, and pixels around the map, as in map.js
WITHOUT_WEBGL = """
  const real = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
    return kind === "webgl2" ? null : real.call(this, kind, ...rest);
  };"""
# What the dots look like, whichever way they were drawn: as a PNG of a plain canvas.
READ_DOTS = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const {canvas} = map.dots;
  const copy = document.createElement("canvas");
  Object.assign(copy, {width: canvas.width, height: canvas.height});
  copy.getContext("2d").drawImage(canvas, 0, 0);
  done(copy.toDataURL().split(",")[1]);
})))"""


def read_dots(tab: Tab) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(tab.evaluate(READ_DOTS))))
    return np.asarray(image).astype(int)


def write(path: Path, names: list[str] | None = None) -> tuple[Path, np.ndarray]:
    """Write the page of images at random places; returns it and the places."""
    names = names or [f"set {i % 3}/{i}.jpg" for i in range(COUNT)]
    points = np.random.default_rng(0).uniform((0, 0), (100, 60), (len(names), 2))
    points = points.astype(np.float32)
    sheet = Image.new("RGB", (16 * 20, 16 * -(-len(names) // 20)))
    for i in range(len(names)):
        sheet.paste(tile_color(i), (i % 20 * 16, i // 20 * 16, i % 20 * 16 + 16, i // 20 * 16 + 16))
    file = io.BytesIO()
    sheet.save(file, "WEBP", lossless=True)
    number = np.arange(len(names))
    content = MapPage(
        title="<b>photos</b>",
        names=names,
        root="/my files/",
        paths=None,
        points=points,
        groups=[
            Group("label", number % 3, ["cat", "dog", HOSTILE[0]]),
            Group("cluster", number % 12, [f"cluster {i + 1}" for i in range(12)]),
        ],
        outliers=points[:, 0] / 100,
        method="t-SNE",
        about="As it was computed.",
    )
    thumbnails = Thumbnails(16, 20, 20 * 20, [file.getvalue()], number, len(names))
    write_page(path, content, thumbnails)
    return path, points


@pytest.fixture(scope="module")
def window(browser) -> Iterator[Window]:
    window = Window(browser)
    yield window
    window.context.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, np.ndarray]:
    return write(tmp_path_factory.mktemp("pages") / "map.html")


@pytest.fixture
def tab(window, page) -> Iterator[Tab]:
    """The page, opened anew; at the end, nothing may have been asked for or complained about."""
    window.complaints.clear()
    window.tab.mouse.move(0, 0)
    tab = window.open_file(page[0])
    # The map gets its size in the first frame, which may come after the page is loaded.
    tab.wait_for_function("document.querySelector('canvas.map').style.height")
    yield tab
    blobs = [one for one in window.complaints if not one.startswith("blob:")]  # a list to download
    assert [one for one in blobs if not one.startswith("data:image/webp")] == []


def place(tab: Tab, points: np.ndarray) -> np.ndarray:
    """Where points lie in the window, from the fit that the page promises."""
    box = tab.locator("canvas.map").bounding_box()
    (left, low), (right, high) = points.min(0), points.max(0)
    scale = min(
        (box["width"] - 2 * MARGIN) / (right - left), (box["height"] - 2 * MARGIN) / (high - low)
    )
    middle = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
    return middle + (points - [(left + right) / 2, (low + high) / 2]) * [scale, -scale]


def draw_lasso(tab: Tab, corners: list[tuple[int, int]]) -> None:
    tab.mouse.move(*corners[0])
    tab.mouse.down()
    for corner in corners[1:]:
        tab.mouse.move(*corner, steps=3)
    tab.mouse.up()


def save(tab: Tab) -> list[str]:
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save list").click()
    assert download.value.suggested_filename == "b-photos-b--selection.txt"
    return Path(download.value.path()).read_text("utf-8").splitlines()


def select(corners: list[tuple[int, int]], places: np.ndarray) -> tuple[set[int], set[int]]:
    """Points inside a polygon that Pillow fills, and those too near to its edge to tell."""
    mask = Image.new("L", (1200, 800))
    ImageDraw.Draw(mask).polygon(corners, fill=1)
    pixels = np.asarray(mask)
    near = [
        {int(pixels[y + dy, x + dx]) for dy in (-2, 0, 2) for dx in (-2, 0, 2)}
        for x, y in places.round().astype(int)
    ]
    return (
        {i for i, v in enumerate(near) if v == {1}},
        {i for i, v in enumerate(near) if v == {0, 1}},
    )


def test_the_saved_list_is_what_lies_in_the_lasso(tab, page):
    places = place(tab, page[1])
    # Not convex: the notch must stay outside.
    corners = [(200, 250), (700, 240), (620, 600), (450, 330), (260, 610)]
    tab.get_by_role("button", name="Lasso").click()
    draw_lasso(tab, corners)
    inside, unclear = select(corners, places)
    listed = save(tab)
    expected = {f"/my files/set {i % 3}/{i}.jpg" for i in inside}
    assert expected <= {*listed} <= expected | {f"/my files/set {i % 3}/{i}.jpg" for i in unclear}
    assert len(listed) > 40 and len(unclear) < 20
    assert f"{len(listed)} of 300 images selected" in tab.locator("#count").inner_text()
    tab.get_by_role("button", name="Invert").click()
    assert sorted(save(tab) + listed) == sorted(
        f"/my files/set {i % 3}/{i}.jpg" for i in range(300)
    )


@pytest.mark.slow
def test_shift_adds_what_the_legend_shows_and_the_list_is_copied(tab, page, window):
    places = place(tab, page[1])
    left, top = places.min(0) - 5
    right, bottom = places.max(0) + 5
    whole = [(left, top), (right, top), (right, bottom), (left, bottom)]
    tab.locator(".legend button", has_text="dog").click()
    tab.keyboard.down("Shift")
    draw_lasso(tab, whole)
    tab.keyboard.up("Shift")
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.get_by_role("button", name="Copy list").click()
    tab.get_by_text("Copied", exact=True).wait_for()
    copied = tab.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied == [f"/my files/set {i % 3}/{i}.jpg" for i in range(300) if i % 3 != 1]


@pytest.mark.slow
def test_pointing_shows_thumbnail_name_label_cluster_and_score(tab, page):
    places = place(tab, page[1])
    for i in (7, 150):
        tab.mouse.move(*places[i])
        assert tab.locator("#tip strong").inner_text() == f"set {i % 3}/{i}.jpg"
        lines = tab.locator("#tip span").all_inner_texts()
        names = ["cat", "dog", HOSTILE[0]]
        score = f"outlier score {page[1][i, 0] / 100:.4g}"
        assert lines == [names[i % 3], f"cluster {i % 12 + 1}", score]
        tab.evaluate("sheets.get(0).decoded")
        middle = "c => [...c.getContext('2d').getImageData(8, 8, 1, 1).data].slice(0, 3)"
        color = tab.locator("#tip canvas").evaluate(middle)
        assert color == pytest.approx(tile_color(i), abs=2)


@pytest.mark.slow
def test_dots_have_the_color_of_their_group_by_webgl_and_without(tab, page, browser, tmp_path):
    places = place(tab, page[1])
    drawn = {}
    other = Window(browser)
    other.tab.add_init_script(WITHOUT_WEBGL)
    for kind, shown in (("webgl", tab), ("canvas", other.open_file(page[0]))):
        assert shown.evaluate("map.dots.kind") == kind
        drawn[kind] = read_dots(shown)
    other.context.close()
    assert other.complaints == []
    # A driver may take the context away at any time: the dots are drawn without it.
    lose = "map.dots.canvas.getContext('webgl2').getExtension('WEBGL_lose_context').loseContext()"
    tab.evaluate(lose)
    drawn["lost"] = read_dots(tab)
    assert tab.evaluate("map.dots.kind") == "canvas"
    assert (drawn["lost"] == drawn["canvas"]).all()
    box = tab.locator("canvas.map").bounding_box()
    at = (places - [box["x"], box["y"]]).round().astype(int)
    apart = [i for i in range(COUNT) if np.sort(np.abs(places - places[i]).max(1))[1] > 12]
    assert len(apart) > 50
    inks = np.array([(0, 114, 178), (230, 159, 0), (0, 158, 115)])  # by name: <img ..., cat, dog
    order = tab.evaluate("colorings[0].groups.map((group) => group.label)")
    for image in drawn.values():
        for i in apart:
            expected = inks[order.index(["cat", "dog", HOSTILE[0]][i % 3])]
            assert np.abs(image[at[i, 1], at[i, 0], :3] - expected).max() <= 4
    difference = np.abs(drawn["webgl"] - drawn["canvas"])[..., 3]
    assert difference.mean() < 0.02 * drawn["canvas"][..., 3].max()  # both draw the same dots


@pytest.mark.slow
def test_colors_by_cluster_and_by_outlier_score(tab, page):
    tab.get_by_label("Color by").select_option("cluster")
    assert tab.locator(".legend button").count() == 12
    tab.get_by_label("Color by").select_option("outlier score")
    assert tab.locator(".legend button").count() == 0
    image = read_dots(tab)
    box = tab.locator("canvas.map").bounding_box()
    at = (place(tab, page[1]) - [box["x"], box["y"]]).round().astype(int)
    low, high = page[1][:, 0].argmin(), page[1][:, 0].argmax()
    assert image[at[low, 1], at[low, 0], :3] == pytest.approx((68, 1, 84), abs=15)
    assert image[at[high, 1], at[high, 0], :3] == pytest.approx((253, 231, 37), abs=15)


@pytest.mark.slow
def test_a_group_is_picked_by_keyboard_alone(tab):
    tab.locator("canvas.map").focus()
    tab.keyboard.press("ArrowRight")
    first = tab.locator("#tip strong").inner_text()
    tab.keyboard.press("Space")
    tab.keyboard.press("ArrowRight")
    second = tab.locator("#tip strong").inner_text()
    tab.keyboard.press("Space")
    assert "2 of 300" in tab.locator("#count").inner_text()
    assert sorted(save(tab)) == sorted(f"/my files/{name}" for name in (first, second))
    tab.locator("canvas.map").focus()
    tab.keyboard.press("a")
    assert "300 of 300" in tab.locator("#count").inner_text()


@pytest.mark.slow
def test_dragging_and_the_wheel_move_the_map_and_keep_the_place_under_the_pointer(tab, page):
    i = 42
    x, y = place(tab, page[1])[i]
    tab.mouse.move(x, y)
    tab.mouse.wheel(0, -600)
    assert tab.evaluate("map.view.zoom") > 2
    box = tab.locator("canvas.map").bounding_box()
    zoomed = tab.evaluate(f"map.place({i})")
    assert zoomed == pytest.approx([x - box["x"], y - box["y"]], abs=0.5)
    tab.mouse.down()
    tab.mouse.move(x + 60, y + 30, steps=2)
    tab.mouse.up()
    assert tab.evaluate(f"map.place({i})") == pytest.approx(
        [zoomed[0] + 60, zoomed[1] + 30], abs=0.5
    )


def test_hostile_names_are_shown_and_never_run(window, tmp_path):
    window.complaints.clear()
    names = [*HOSTILE, *HOSTILE]
    path, points = write(tmp_path / "map.html", names)
    tab = window.open_file(path)
    places = place(tab, points)
    for i in range(3):
        tab.mouse.move(*places[i])
        assert tab.locator("#tip strong").inner_text().split() == names[i].split()
    tab.get_by_role("button", name="Select all shown").click()
    tab.get_by_text("Show the list").click()
    tab.locator("#list:not(:empty)").wait_for()
    assert (
        tab.locator("#list").inner_text().split()
        == " ".join(f"/my files/{n}" for n in names).split()
    )
    assert tab.locator("h1").inner_text() == "<b>photos</b>"
    assert tab.locator("img, iframe, object").count() == 0
    assert tab.evaluate("window.hacked") is None


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_the_page_follows_the_color_scheme(window, page, scheme):
    tab = window.open_file(page[0], scheme)
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
    assert dark is (scheme == "dark")
    for width in (1200, 700, 360):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
