"""The page in a real browser, cut off from any network."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator
from playwright.sync_api import Page as Tab

from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from tests.report_page import folders
from tests.report_page.browser_window import Window
from tests.report_page.folders import HOSTILE, RECIPE, analyze, records, tile_color

pytestmark = pytest.mark.browser
MARGIN = 26  # as in map.js


@pytest.fixture(scope="module")
def window(browser) -> Iterator[Window]:
    window = Window(browser)
    yield window
    window.context.close()


@pytest.fixture
def open_page(window) -> Iterator[Callable[..., Tab]]:
    """Open a run's page; at the end, nothing may have been asked for or complained about."""
    window.complaints.clear()
    window.tab.mouse.move(0, 0)
    yield window.open
    assert window.complaints == []


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory) -> Iterator[tuple[Run, Tab, list[str]]]:
    run = folders.make_run(tmp_path_factory.mktemp("runs") / "r1")
    window = Window(browser)
    yield run, window.open(run), window.complaints
    window.context.close()


@pytest.fixture
def tab(opened) -> Iterator[Tab]:
    """The page of one run for all tests that leave it as it was, with the pointer beside it."""
    _, tab, complaints = opened
    tab.mouse.move(0, 0)
    yield tab
    assert complaints == []


def text(tab: Tab, where: str) -> str:
    return tab.locator(where).inner_text()


def bring(tab: Tab, element: Locator) -> dict[str, float]:
    """Scroll to an element; the page hides its tips once that is told, which takes a frame."""
    element.scroll_into_view_if_needed()
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    tab.evaluate(frame)
    return element.bounding_box()


def place(tab: Tab, index: int, count: int = 6) -> tuple[float, float]:
    """Where a point of the map lies in the window, from the fit the page promises."""
    box = bring(tab, tab.locator("canvas.map"))
    scale = (box["width"] - 2 * MARGIN) / (10 * (count - 1))
    x = box["x"] + MARGIN + 10 * index * scale
    y = box["y"] + box["height"] / 2 - (index % 2 - 0.5) * scale
    return x, y


def color(canvas: Locator) -> list[int]:
    middle = "c => [...c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data]"
    return canvas.evaluate(middle)[:3]


def test_every_part_is_filled(tab):
    assert text(tab, "h1") == "r1"
    assert "It is learning." in text(tab, "#verdict .sentence")
    assert "from 30.0 % to 70.0 %: 40.0 points above" in text(tab, "#figures").replace("\xa0", " ")
    assert tab.locator("#figures .bars li").count() == 9
    assert tab.locator(".plot svg.inside path").count() == 7
    assert tab.locator("#views canvas").count() == 6
    # Of five, the images 2 and 4, after training and before.
    assert tab.locator("#neighbors .side").count() == 2
    assert tab.locator("#neighbors .same").count() == 4
    assert "Before training: 2 of 5 neighbors" in text(tab, "#neighbors").replace("\xa0", " ")
    assert "A tenth of the images." in text(tab, "#recipe")
    assert "selfsight resume" in text(tab, "#recipe")


def test_encoders_that_the_images_do_not_tell_apart_are_called_indistinguishable(
    make_run, open_page
):
    run = make_run()
    pair = {"difference": 0.05, "low": -0.02, "high": 0.11, "n": 72}
    above = pair | {"low": 0.01}
    differences = {"untrained": {"box_AP": pair}, "random": {"box_AP": above}}
    run.write_result("detection.small_fpn", {"box_AP": 0.4, "differences": differences})
    tab = open_page(run)
    assert tab.locator("#figures .bars li").count() == 10
    told = text(tab, "#figures .differences")
    assert "indistinguishable from the untrained network on these images (+5.0 points" in told
    assert "5.0 points above random (95 % interval +1.0 to +11.0, 72 images)" in told


def test_the_classes_and_their_confusion_are_drawn(tab):
    assert "(95 % interval +30.0 to +50.0)" in text(tab, "#figures .gain")
    assert tab.locator(".classes li").count() == 2
    assert text(tab, ".classes li >> nth=0").split()[:1] == ["dog"]
    tab.wait_for_selector("#classes .matrix svg")
    assert tab.locator("#classes .matrix rect.wrong").count() == 2
    cell = bring(tab, tab.locator("#classes .matrix rect.wrong").first)
    tab.mouse.move(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
    assert text(tab, "#tip strong") == "cat → dog"
    assert "1 of 10 images" in text(tab, "#tip")


def test_the_page_draws_an_analysis_or_says_that_there_is_none(tab, make_run, open_page):
    assert "Not analyzed yet" in text(tab, "#features")
    run = make_run()
    analyze(run)
    tab = open_page(run)
    charts = tab.locator("#features figure")
    assert charts.count() == 4
    assert text(tab, "#features .key >> nth=0").split() == ["backbone", "projector"]
    tab.wait_for_function("document.querySelectorAll('#features svg').length === 4")
    for path in tab.locator("#features path").all():
        assert "NaN" not in path.get_attribute("d")
    # 0 is at the bottom: a mean of 2 under a bound of 9 lies in the lowest third
    box = charts.nth(3).locator("svg").bounding_box()
    dot = charts.nth(3).locator("circle").first.bounding_box()
    assert dot["y"] - box["y"] > 0.6 * box["height"]


def test_pointing_at_a_dot_shows_its_image_name_and_label(tab):
    for index in range(6):
        tab.mouse.move(*place(tab, index))
        assert text(tab, "#tip strong") == f"photos/{index}.jpg"
        assert text(tab, "#tip span") == ("cat", "dog")[index % 2]
        assert color(tab.locator("#tip canvas")) == pytest.approx(tile_color(index), abs=6)


def test_the_legend_hides_and_shows_a_label(tab):
    dogs = tab.locator(".legend button", has_text="dog")
    dogs.click()
    assert dogs.get_attribute("aria-pressed") == "false"
    tab.mouse.move(*place(tab, 3))
    assert tab.locator("#tip").is_hidden()
    tab.mouse.move(*place(tab, 2))
    assert text(tab, "#tip strong") == "photos/2.jpg"
    dogs.click()
    tab.mouse.move(*place(tab, 3))
    assert text(tab, "#tip strong") == "photos/3.jpg"


def test_the_map_can_be_walked_and_zoomed_by_keyboard(tab):
    tab.locator("canvas.map").focus()
    names = []
    for _ in range(6):
        tab.keyboard.press("ArrowRight")
        names.append(text(tab, "#tip strong"))
    assert names[-1] == "photos/5.jpg"
    assert names == sorted(names)
    tab.keyboard.press("+")
    tab.mouse.move(*place(tab, 0))
    assert tab.locator("#tip").is_hidden()  # zoomed in, the first dot lies outside
    tab.keyboard.press("0")
    x, y = place(tab, 0)
    tab.mouse.move(x + 1, y)
    assert text(tab, "#tip strong") == "photos/0.jpg"


def test_hostile_names_are_shown_and_never_run(make_run, open_page):
    names = [*HOSTILE, *HOSTILE]
    run = make_run("<img src=x onerror=window.hacked=1>", names=names, labels=list(names))
    said = {"verdict": HOSTILE[0], "sentence": HOSTILE[1], "evidence": [{"name": HOSTILE[0]}]}
    run.write_result("verdict", said)
    run.recipe_path.write_text(json.dumps({**RECIPE, HOSTILE[0]: {HOSTILE[1]: HOSTILE[0]}}))
    run.write_result(
        HOSTILE[0], {HOSTILE[1]: HOSTILE[0], "accuracy": 0.5, "settings": {HOSTILE[0]: HOSTILE[1]}}
    )
    run.log(records(21)[-1] | {f"grad_norm.{HOSTILE[0]}": 1.0, HOSTILE[1]: HOSTILE[0]})
    tab = open_page(run)
    assert text(tab, "h1") == "<img src=x onerror=window.hacked=1>"
    assert text(tab, "#verdict .sentence") == HOSTILE[1]
    assert HOSTILE[1] in text(tab, "#recipe")
    for index in (0, 1):
        tab.mouse.move(*place(tab, index))
        assert text(tab, "#tip strong") == HOSTILE[index]
    assert tab.locator("img, iframe, object").count() == 0
    assert tab.evaluate("window.hacked") is None


def test_pointing_at_a_curve_shows_step_epoch_and_value(tab):
    box = bring(tab, tab.locator(".plot").first)
    tab.mouse.move(box["x"] + box["width"] - 20, box["y"] + 80)
    assert text(tab, "#tip").split("\n") == ["Loss", "step 190", "epoch 1.9", "3.15"]
    readouts = tab.locator(".curve output").all_inner_texts()
    assert len(readouts) == 7  # one cursor for all curves
    assert all(readout.startswith("step 190 · epoch 1.9 · ") for readout in readouts)


def test_curves_zoom_together_by_dragging_and_by_keyboard(tab):
    plot, other = tab.locator(".plot").first, tab.locator(".plot").nth(2)
    plot.scroll_into_view_if_needed()
    whole = other.inner_text()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 200, box["y"] + 80)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 300, box["y"] + 80)
    tab.mouse.up()
    assert other.inner_text() != whole
    tab.get_by_role("button", name="Show all steps").click()
    assert other.inner_text() == whole
    plot.focus()
    tab.keyboard.press("Home")
    assert plot.get_attribute("aria-valuetext") == "step 0 · epoch 0 · 6"
    tab.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuenow") == "10"
    tab.keyboard.press("+")
    assert other.inner_text() != whole
    tab.get_by_role("button", name="Show all steps").click()


def test_nothing_sticks_out_of_a_phone_or_a_desk(make_run, open_page):
    tab = open_page(make_run(names=["n" * 200] * 6))
    for width in (1200, 700, 360):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(tab, make_run, open_page, scheme):
    if scheme != "light":
        tab = open_page(make_run(), scheme=scheme)
    contrast = """({where, against}) => {
      const light = (name) => {
        const part = getComputedStyle(document.querySelector(name[0]))[name[1]];
        const [r, g, b] = part.match(/[0-9.]+/g).map(Number)
          .map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const [a, b] = [light([where, "color"]), light([against, "backgroundColor"])];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }"""
    # WCAG 2.2, 1.4.3: 4.5 to 1
    for where in (".sentence", ".state", ".lead", ".curve output", "summary", ".same figcaption"):
        assert tab.evaluate(contrast, {"where": where, "against": "section"}) >= 4.5, where
    assert tab.evaluate(contrast, {"where": "h1", "against": "body"}) >= 4.5
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
    assert dark is (scheme == "dark")


def test_the_page_of_a_run_without_records_says_what_is_missing(tmp_path, open_page):
    run = Run(tmp_path)
    run.recipe_path.write_text("{}")
    tab = open_page(run)
    assert "nothing has been logged" in text(tab, "#verdict")
    parts = [part.get_attribute("id") for part in tab.locator("section:has(.missing)").all()]
    drawn = ["curves", "features", "views", "map", "neighbors"]
    assert parts == ["verdict", "figures", "classes", *drawn, "recipe"]


def test_a_single_record_and_no_labels_still_make_a_page(make_run, open_page):
    tab = open_page(make_run(labels=[None] * 6, log=records(1, knn=False)))
    assert text(tab, ".curve output >> nth=0") == "last: 6"
    assert "needs labels" in text(tab, "#curves")
    figures = text(tab, "#figures")
    assert "[88.0, 92.0]" in figures and "✓ better" in figures
    assert "+50.0 [+40.0, +60.0], 128 images" in figures
    rank = tab.locator(".free tr", has_text="Effective rank")  # its interval contains 0
    assert "no clear difference" in rank.inner_text() and rank.locator(".good, .poor").count() == 0
    assert "judge by eye" in text(tab, "#neighbors")
    assert tab.locator(".legend").count() == 0
    tab.mouse.move(*place(tab, 4))
    assert text(tab, "#tip strong") == "photos/4.jpg"


def test_the_page_says_that_a_sheet_cannot_be_read(make_run, open_page):
    run = make_run()
    (run.images / "map.jpg").write_bytes(b"not an image")
    tab = open_page(run)
    assert "could not be read" in text(tab, "#map")
    assert tab.locator("#views canvas").count() == 6


def test_a_command_is_copied(opened, tab):
    run = opened[0]
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.get_by_role("button", name="Copy: Resume the run").click()
    tab.get_by_text("Copied", exact=True).wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == f"selfsight resume {run.path}"


def test_the_recipe_shows_what_differs_and_the_images_that_were_left_out(make_run, open_page):
    run = make_run()
    recipe = run.saved_recipe()
    recipe["optim"] = {"lr": 0.7, "momentum": 0.9, "schedule": {"name": "cosine", "end": 0.0}}
    recipe["views"] = [{"blur": 0.0, "gray": 0.2}, {"blur": 0.5, "gray": 0.2}]
    recipe |= {"changed": ["optim.lr", "views.1.blur"], "skipped": 3}
    recipe |= {"left_out": {"odd/<b>.jpg": "the file is empty", "b.png": "truncated"}}
    write_json(run.recipe_path, recipe)
    tab = open_page(run)
    first = text(tab, "#recipe > .body > table >> nth=0")
    assert "0.7" in first and "blur" in first and "0.5" in first
    assert "momentum" not in first and "cosine" not in first and "gray" not in first
    assert "Left out: 3 unreadable images, of which 2 are listed" in text(tab, "#recipe")
    for line in tab.locator("#recipe summary").all():
        line.click()
    assert "odd/<b>.jpg" in text(tab, "#recipe") and "momentum" in text(tab, "#recipe")


def test_the_page_rounds_as_python_does(tab):
    values = [k / 400 * 100 for k in range(-400, 401)] + [100 / 3, 0.05, 0.15, 2.675, 1e-9]
    shown = tab.evaluate("values => values.map((v) => [toFixed(v, 1), toFixed(v, 2)])", values)
    expected = [[f"{v:.1f}", f"{v:.2f}"] for v in values]
    assert [pair for pair in zip(values, shown, expected, strict=True) if pair[1] != pair[2]] == []


def test_durations_are_rounded_before_they_are_split(tab):
    shown = tab.evaluate("[0.4, 59.7, 119.6, 3599.6, 7325].map(duration)")
    assert shown == ["0 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "2 h 2 min"]
