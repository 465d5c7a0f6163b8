from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA

from selfsight.catalog import build_recipe
from selfsight.evals.extract_features import Features
from selfsight.evals.tsne_map import reduce_to_plane
from selfsight.run_files.run_folder import Run
from selfsight.runs.image_sheets import to_image, write_map, write_neighbors, write_views
from tests.data.image_files import read_padded
from tests.evals.small_networks import VIEWS, bright, from_pixels
from tests.evals.test_label_free import STILL


def viewing(views, seed=0, precision="float32"):
    """A recipe with these views."""
    return replace(build_recipe("simclr.shapes"), views=views, seed=seed, precision=precision)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def tiles(run, name, suffix):
    """The sheet cut up again: [rows, columns] of pixels."""
    layout = run.image_json(name)
    side, columns = layout["tile"], layout["columns"]
    sheet = np.asarray(Image.open(run.images / f"{name}.{suffix}"), dtype=np.int64)
    assert sheet.shape[1] == columns * side
    return sheet.reshape(-1, side, columns, side, 3).swapaxes(1, 2)


def embedded(n, d=4, seed=0, labels=None):
    h = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return Features(h, labels, torch.arange(n))


def test_views_sheet_shows_each_image_and_its_views(run):
    images = bright(10)
    write_views(run, images, viewing((STILL, STILL)), rows=4)
    layout = run.image_json("views")
    assert layout["titles"] == ["image", "view 1", "view 2"]
    shown = tiles(run, "views", "png")
    assert shown.shape[:2] == (4, 3)
    for row, about in zip(shown, layout["rows"], strict=True):
        i = list(images.names).index(about["name"])
        pixels = read_padded(images, torch.tensor([i]))[0][0].permute(1, 2, 0).numpy()
        # 8 pixels in a tile of 96: each becomes a block of 12, unchanged.
        assert (row[0][6::12, 6::12] == pixels).all()
        # A view that changes nothing, with its normalization undone, is the image.
        assert np.abs(row[1][6::12, 6::12] - pixels).max() <= 1


def test_views_are_those_that_training_makes(run):
    images = bright(6)
    write_views(run, images, viewing(VIEWS, seed=3), rows=2)
    first = tiles(run, "views", "png")
    write_views(run, images, viewing(VIEWS, seed=3), rows=2)
    assert (tiles(run, "views", "png") == first).all()
    assert (first[:, 1] != first[:, 2]).any()  # two draws


def test_views_are_shown_in_the_precision_of_training(run):
    by_precision = []
    for precision in ("float32", "bf16"):
        write_views(run, bright(6), viewing(VIEWS, precision=precision), rows=4)
        by_precision.append(tiles(run, "views", "png")[:, 1:])
    full, half = by_precision
    assert 0 < np.abs(full - half).max() <= 2  # of 255


def test_fewer_images_than_rows(run):
    write_views(run, bright(3), viewing(VIEWS), rows=8)
    assert len(run.image_json("views")["rows"]) == 3


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_any_number_of_channels_can_be_shown(channels):
    x = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    image = np.asarray(to_image(x))
    assert image.shape == (5, 7, 3)
    used = range(3) if channels >= 3 else [0, 0, 0]
    for place, channel in enumerate(used):
        assert (image[..., place] == x[channel].numpy()).all()


def test_padding_of_a_batch_is_not_shown(run):
    white = [torch.full((3, h, w), 255, dtype=torch.uint8) for h, w in ((8, 8), (20, 10))]
    images = from_pixels(white)
    write_map(run, images, embedded(2))
    shown = tiles(run, "map", "jpg")[0]
    assert shown[0].min() > 250
    assert shown[1].min() > 250


def test_map_has_a_point_and_a_tile_for_each_image(run):
    images = bright(55, names=[f"<b>{i}</b>.png" for i in range(55)])
    write_map(run, images, embedded(55, labels=images.labels))
    layout = run.image_json("map")
    assert layout["method"] == "t-SNE"
    assert [p["name"] for p in layout["points"]] == list(images.names)
    assert [p["label"] for p in layout["points"]] == [f"class {i % 3}" for i in range(55)]
    shown = tiles(run, "map", "jpg")
    assert shown.shape[:2] == (2, 40)
    for i in (0, 1, 2, 54):  # the brightest channel is the class
        assert shown[i // 40, i % 40].mean(axis=(0, 1)).argmax() == i % 3


def test_map_of_more_than_the_limit_takes_some(run):
    images = bright(30, labeled=False)
    write_map(run, images, embedded(30), limit=8)
    points = run.image_json("map")["points"]
    assert len({p["name"] for p in points}) == 8
    assert all(p["label"] is None for p in points)
    assert run.image_json("map")["method"] == "PCA"


def test_map_of_few_points_is_scikit_learns_pca():
    h = torch.randn(20, 6)
    method, points = reduce_to_plane(h)
    unit = torch.nn.functional.normalize(h.double(), dim=1).numpy()
    expected = PCA(2, svd_solver="full").fit_transform(unit)
    assert method == "PCA"
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-6)  # signs are arbitrary


def test_map_keeps_groups_together():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    h = torch.eye(3)[y] @ torch.randn(3, 16, generator=g) + 0.05 * torch.randn(60, 16, generator=g)
    method, points = reduce_to_plane(h)
    assert method == "t-SNE"
    points = torch.from_numpy(points).double()
    far = torch.cdist(points, points).fill_diagonal_(torch.inf)
    assert (y[far.argmin(dim=1)] == y).all()
    again = reduce_to_plane(h)[1]
    np.testing.assert_array_equal(points.numpy(), again.astype(np.float64))


@pytest.mark.parametrize(
    "h", [torch.ones(20, 4), torch.full((20, 4), torch.nan), torch.randn(1, 4), torch.randn(12, 1)]
)
def test_map_of_features_without_shape_is_still_a_map(h):
    _, points = reduce_to_plane(h)
    assert points.shape == (len(h), 2)
    assert np.isfinite(points).all()


def test_neighbors_are_the_most_similar_others(run):
    images = bright(12)
    features, untrained = embedded(12, labels=images.labels), embedded(12, seed=1)
    write_neighbors(run, images, features, untrained, rows=5, k=3)
    layout = run.image_json("neighbors")
    assert len(layout["rows"]) == 5
    for key, found in (("neighbors", features), ("untrained", untrained)):
        unit = torch.nn.functional.normalize(found.h, dim=1)
        similarity = (unit @ unit.T).fill_diagonal_(-2)
        for row in layout["rows"]:
            i = list(images.names).index(row["name"])
            values, others = similarity[i].topk(3)
            assert [n["name"] for n in row[key]] == [images.names[j] for j in others]
            assert [n["similarity"] for n in row[key]] == pytest.approx(values.tolist(), abs=1e-4)
            assert row["label"] == f"class {i % 3}"
    shown = tiles(run, "neighbors", "jpg")
    assert shown.shape[:2] == (5, 7)
    for line, row in zip(shown, layout["rows"], strict=True):  # the brightest channel is the class
        named = [row["label"], *(n["label"] for n in row["neighbors"] + row["untrained"])]
        assert [f"class {tile.mean(axis=(0, 1)).argmax()}" for tile in line] == named


def test_features_of_some_images_lead_back_to_them(run):
    images = bright(20)
    features = embedded(6)._replace(index=torch.tensor([19, 4, 7, 0, 2, 11]))
    write_neighbors(run, images, features, rows=6, k=2)
    names = {row["name"] for row in run.image_json("neighbors")["rows"]}
    assert names == {images.names[i] for i in features.index.tolist()}


def test_a_set_smaller_than_the_sheet(run):
    images = bright(3)
    write_neighbors(run, images, embedded(3), rows=12, k=7)
    layout = run.image_json("neighbors")
    assert layout["columns"] == 3
    assert [len(row["neighbors"]) for row in layout["rows"]] == [2, 2, 2]


def test_names_of_any_kind_are_kept_as_text(run):
    images = from_pixels(
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        torch.tensor([0, 1]),
        ("<i>", "é"),
        ["a&b", "日"],
    )
    write_neighbors(run, images, embedded(2, labels=images.labels), k=1)
    rows = run.image_json("neighbors")["rows"]
    assert {(row["name"], row["label"]) for row in rows} == {("a&b", "<i>"), ("日", "é")}
