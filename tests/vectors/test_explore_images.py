"""Explore: the layout of many images, and the page that the command writes."""

import base64
import io
import os
import re
import shlex
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import adjusted_rand_score

import selfsight
from selfsight.cli.main import main
from selfsight.data import open_source
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError
from selfsight.evals import tsne_map
from selfsight.evals.tsne_map import reduce_to_plane
from selfsight.run_files.run_folder import Run
from selfsight.vectors import explore_images as exploration
from selfsight.vectors.map_layout import lay_out, place_by_neighbors
from selfsight.vectors.search_images import Neighbors
from tests.exporters.saved_run import save_photo, save_run
from tests.report_page.folders import HOSTILE
from tests.report_page.test_report import Page

CPU = torch.device("cpu")
DOCS = Path(__file__).parents[2] / "docs/explore.md"
COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 50, 230)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "mine", name="resnet8_narrow", image_size=32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of three colors in folders, the names of one as hostile as a file system permits."""
    folder = tmp_path_factory.mktemp("data") / "my photos"
    for color, pixel in COLORS.items():
        (folder / color).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (40 + i, 30), pixel).save(folder / color / f"{i}.png")
    for i, name in enumerate(HOSTILE):
        Image.new("RGB", (30, 40 + i)).save(folder / "blue" / f"{name.replace('/', ' ')}.png")
    return folder


def read(path, kind="<f4"):
    return np.frombuffer(base64.b64decode(path), dtype=kind)


@pytest.fixture(scope="module")
def page(run, photos):
    written = selfsight.explore(run, photos, labels=True, clusters=3, device="cpu", quiet=True)
    return written, Page(Path(written["page"]).read_text("utf-8"))


def clusters(n=240, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    h = torch.randn(4, 16, generator=g)[y] + 0.25 * torch.randn(n, 16, generator=g)
    return torch.nn.functional.normalize(h, dim=1), y


def test_of_a_sample_the_others_lie_with_their_group_and_scores_are_those_of_a_loop():
    h, y = clusters()
    h[12] = h[20]  # a copy must not count as the image itself
    layout = lay_out(h, clusters=4, device=CPU, sample=80)
    assert layout.method == "t-SNE of 80 images"
    assert adjusted_rand_score(y, layout.clusters) == 1
    assert (np.diff(np.bincount(layout.clusters)) <= 0).all()
    far = torch.cdist(*[torch.from_numpy(layout.points)] * 2).fill_diagonal_(torch.inf)
    assert (y[far.argmin(dim=1)] == y).all()
    # The places of t-SNE are in the map as they are, and tell which images it was given.
    known = _tsne(h, 80)
    sample = [i for i in range(240) if any(np.allclose(layout.points[i], p) for p in known)]
    assert len(sample) == 80
    similarity = h.double() @ h.double().T
    for i in range(0, 240, 7):
        others = [similarity[i, j].item() for j in sample if j != i]
        expected = 1 - np.mean(sorted(others, reverse=True)[:10])
        assert layout.outliers[i] == pytest.approx(expected, abs=1e-5)


def test_an_image_between_groups_lies_in_that_of_its_nearest():
    points = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    points[8:] += 90
    near = Neighbors(torch.tensor([[0.9, 0.8, 0.79, 0.5]] * 17), torch.tensor([[0, 8, 9, 1]] * 17))
    placed = place_by_neighbors(near, torch.arange(16), points, 17)
    np.testing.assert_array_equal(placed[:16], points)
    assert np.abs(placed[16]).max() < 3  # the mean of the four lies near (40, 40)


def _tsne(h, count):
    from selfsight import rng

    rows = rng.shuffled(rng.key(0, "map"), len(h), torch.arange(count)).sort().values
    return reduce_to_plane(h[rows])[1].astype(np.float32)


@pytest.mark.slow
def test_all_images_are_laid_out_by_the_map_of_the_report(monkeypatch, capsys):
    monkeypatch.setattr(tsne_map, "ANNOUNCED", 1)
    h, _ = clusters(60)
    layout = lay_out(h, clusters=4, device=CPU)
    np.testing.assert_array_equal(layout.points, reduce_to_plane(h)[1].astype(np.float32))
    assert "Laying out a map of" in capsys.readouterr().err


@pytest.mark.parametrize("h", [torch.ones(8, 4), torch.full((8, 4), torch.nan), torch.eye(2)])
def test_vectors_without_shape_still_make_a_map(h):
    layout = lay_out(h, clusters=12, device=CPU)
    assert layout.points.shape == (len(h), 2) and np.isfinite(layout.points).all()
    assert layout.clusters.max() < len(h)


def test_the_page_has_each_image_with_its_label_and_thumbnail(page, photos):
    written, parsed = page
    data = parsed.data()
    assert written["bytes"] == os.path.getsize(written["page"]) and written["labels"] == 3
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    assert sorted(data["names"]) == names
    label = data["groups"][0]
    assert label["title"] == "label"
    sheet = re.search(r'id="sheet-0">([^<]*)<', Path(written["page"]).read_text("utf-8"))
    image = Image.open(io.BytesIO(base64.b64decode(sheet[1]))).convert("RGB")
    side, columns = data["tile"], data["columns"]
    for name, number, tile in zip(
        data["names"], read(label["of"], "<i4"), read(data["tiles"], "<i4"), strict=True
    ):
        folder = name.split("/")[0]
        assert label["names"][number] == folder
        middle = (tile % columns * side + side // 2, tile // columns * side + side // 2)
        expected = (0, 0, 0) if len(name) > 12 else COLORS[folder]
        assert image.getpixel(middle) == pytest.approx(expected, abs=12), name


def test_names_of_files_are_inert(page):
    _, parsed = page
    assert parsed.tags.count("script") == 3  # sheet, data and code
    assert not {"img", "iframe", "object", "a"} & {*parsed.tags}
    values = [value for _, value in parsed.attributes if value]
    assert not [value for value in values if re.match("https?:|//|javascript:", value)]
    assert all(not name.startswith("on") for name, _ in parsed.attributes)


def test_a_list_of_the_page_is_read_by_the_other_commands(page, photos, tmp_path):
    data = page[1].data()
    lines = [data["root"] + name for name in data["names"][:5]]
    (tmp_path / "list.txt").write_text("".join(f"{line}\n" for line in lines))
    source = open_source(str(tmp_path / "list.txt"))
    assert [source.local_path(i) for i in range(5)] == lines
    assert all(source.read(i) == Path(line).read_bytes() for i, line in enumerate(lines))


@pytest.mark.slow
def test_names_that_no_list_can_hold_are_counted(run, tmp_path):
    for name in ("a.png", "b\tc.png", "d\ne.png", os.fsdecode(b"\xff.png")):
        Image.new("RGB", (9, 9), (len(name), 90, 0)).save(tmp_path / name)
    written = selfsight.explore(run, tmp_path, out=tmp_path / "m.html", device="cpu", quiet=True)
    data = Page((tmp_path / "m.html").read_text("utf-8")).data()
    assert written["not_listed"] == 3 and data["root"] is None
    assert sorted(filter(None, data["paths"])) == [str(tmp_path / "a.png")]


def test_thumbnails_are_as_large_as_fits_and_never_more(tmp_path):
    for i in range(8):
        noise = np.random.default_rng(i).integers(0, 256, (100, 120, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    source = open_source(str(tmp_path))
    index = [*range(8)] * 4
    sizes = []
    for room in (10**6, 50_000, 1000):
        found = exploration._build_thumbnails(source, index, EvalTransform(), room)
        total = sum(len(base64.b64encode(sheet)) for sheet in found.sheets)
        assert room / 4 < total <= room or found.side == 96
        sizes.append((found.side, found.shown, int((found.of >= 0).sum())))
    assert sizes[0] == (96, 32, 32)
    assert 16 < sizes[1][0] < 96 and sizes[1][1:] == (32, 32)
    assert sizes[2][0] == 16 and sizes[2][1] == sizes[2][2] < 32


def test_bad_input_gets_a_sentence(run, photos, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["explore", str(run.path)])
    assert "Give RUN and DATA: `selfsight explore RUN DATA`" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"Give a name like map\.html"):
        selfsight.explore(run, photos, out=tmp_path / "list.txt", device="cpu", quiet=True)
    with pytest.raises(UserError, match="clusters is 0"):
        selfsight.explore(run, photos, clusters=0)
    (tmp_path / "one").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "one/a.png")
    with pytest.raises(UserError, match="two images or more"):
        selfsight.explore(run, tmp_path / "one", device="cpu", quiet=True)


@pytest.mark.slow
def test_the_command_says_what_it_wrote(run, photos, capsys, tmp_path):
    words = ["--out", str(tmp_path / "m.html"), "--device", "cpu", "--max-mb", "1"]
    main(["explore", str(run.path), str(photos), *words])
    said = capsys.readouterr().out
    size = os.path.getsize(tmp_path / "m.html")
    assert f"21 images, {size / 1e6:.1f} MB, thumbnails of 96 pixels, map by PCA" in said
    assert size <= 10**6


@pytest.mark.slow
def test_images_that_are_no_files_have_names_only(run, tmp_path):
    written = selfsight.explore(run, "digits", out=tmp_path / "m.html", device="cpu", quiet=True)
    data = Page((tmp_path / "m.html").read_text("utf-8")).data()
    assert written["labels"] == 10 and data["groups"][0]["names"] == [*map(str, range(10))]
    assert data["root"] is None and data["paths"] is None


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs/photos-auto", name="resnet8_narrow", image_size=32)
    recipe = Run(tmp_path / "runs/photos-auto").recipe_path
    recipe.write_text(recipe.read_text().replace('"photos"', f'"{tmp_path}/photos"'))
    (tmp_path / "photos").mkdir()
    for seed in range(20):
        save_photo(tmp_path / f"photos/{seed}.jpg", seed=seed)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupt)
    commands = re.findall(r"^selfsight [^\n]+$", DOCS.read_text(), re.MULTILINE)
    for command in commands:
        words = [*shlex.split(command)[1:], "--device", "cpu"]
        if words[0] == "pretrain":
            words += ["--epochs", "1", "--batch-size", "8", "--method", "simsiam"]
        if words[0] == "report":
            with pytest.raises(SystemExit):
                main(words)
            continue
        main(words)
        if words[0] == "explore":
            page = Path("runs/photos-auto/explore/photos.html")  # as the page says
            data = Page(page.read_text("utf-8")).data()
            lines = [f"{data['root']}{name}\n" for name in data["names"]]
            Path("photos-selection.txt").write_text("".join(lines))
    assert [command.split()[1] for command in commands] == [
        "explore",
        "pretrain",
        "embed",
        "report",
    ]
    assert "stopped serving" in capsys.readouterr().err
