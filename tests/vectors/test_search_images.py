"""Search: similar images, near-duplicates and outliers, against numpy."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import selfsight
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.vectors import embed_images as embedding
from selfsight.vectors import search_images as searching
from tests.exporters.saved_run import save_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "mine", name="resnet8_narrow", image_size=32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve images of stripes, a cut copy of the first, a copy of the second, and a black one."""
    folder = tmp_path_factory.mktemp("data") / "photos of mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        image = Image.new("RGB", (60, 50), tuple(rng.integers(60, 200, 3).tolist()))
        for x in range(0, 60, 4 + i % 5):
            ImageDraw.Draw(image).line((x, 0, x + 3 * (i % 4), 50), fill=(255, 20 * i, 90), width=2)
        image.save(folder / f"{i:02}.png")
    Image.open(folder / "00.png").crop((1, 1, 59, 49)).save(folder / "cut of 00.png")
    shutil.copyfile(folder / "01.png", folder / "z01.png")
    Image.new("RGB", (60, 50)).save(folder / "black.png")
    return folder


def test_the_encoder_is_loaded_once(run, photos, monkeypatch):
    loaded = []
    load = embedding.load_with_options
    monkeypatch.setattr(
        embedding, "load_with_options", lambda *given: loaded.append(given) or load(*given)
    )
    found = selfsight.search(run, photos, outliers=True, device="cpu", quiet=True)
    assert len(loaded) == 1
    assert selfsight.embed(run, photos, device="cpu", quiet=True)["folder"] == found["vectors"]


def test_similar_images_are_those_of_numpy(run, photos):
    found = selfsight.search(run, photos, photos / "03.png", count=4, device="cpu", quiet=True)
    (rows,) = found["similar"].values()
    paths = sorted(photos.iterdir())
    h = selfsight.load(run).encode(paths).double().numpy()
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    expected = h @ h[[p.name for p in paths].index("03.png")]
    order = np.argsort(-expected)[:4]
    assert [row["path"] for row in rows] == [paths[i].name for i in order]
    np.testing.assert_allclose([row["similarity"] for row in rows], expected[order], atol=1e-6)


def test_copies_are_grouped_the_odd_one_is_found_and_the_list_has_neither(run, photos, tmp_path):
    kept = tmp_path / "kept.txt"
    found = selfsight.search(
        run, photos, duplicates=True, outliers=True, count=1, keep=kept, device="cpu", quiet=True
    )
    groups = {frozenset(group) for group in found["duplicates"]}
    assert {"01.png", "z01.png"} <= frozenset().union(*groups)
    assert any({"00.png", "cut of 00.png"} <= group for group in groups)
    assert [row["path"] for row in found["outliers"]] == ["black.png"]
    lines = kept.read_text().splitlines()
    assert len(lines) == found["kept"] < 14
    names = {line.rpartition("/")[2] for line in lines}
    assert {"00.png", "01.png"} <= names and not names & {"black.png", "z01.png", "cut of 00.png"}
    again = selfsight.search(run, kept, photos / "00.png", count=2, device="cpu", quiet=True)
    assert again["images"] == len(lines)  # the list is read by every command


def test_groups_and_outliers_are_those_of_a_loop_over_pairs():
    h = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.manual_seed(0)), dim=1)
    near = searching.find_neighbors(h, index="exact")
    similarity = h.double() @ h.double().T
    group = list(range(60))  # of each image: the lowest number that it is linked with
    for i in range(60):
        for j in range(60):
            if similarity[i, j] >= 0.97 and group[i] != group[j]:
                low, high = sorted((group[i], group[j]))
                group = [low if g == high else g for g in group]
    expected = {frozenset(i for i in range(60) if group[i] == g) for g in set(group)}
    found = searching.group_duplicates(near, similarity=0.97)
    assert {*map(frozenset, found)} == {g for g in expected if len(g) > 1}
    order = [(len(g), max(similarity[i, j] for i in g for j in g if i != j)) for g in found]
    assert order == sorted(order, reverse=True)
    others = similarity.fill_diagonal_(-2).sort(dim=1, descending=True).values[:, :10]
    torch.testing.assert_close(
        searching.score_outliers(near), (1 - others.mean(dim=1)).float(), atol=1e-5, rtol=0
    )


def test_faiss_finds_what_the_exact_search_finds():
    pytest.importorskip("faiss")
    h = torch.nn.functional.normalize(torch.randn(400, 8, generator=torch.manual_seed(0)), dim=1)
    h[7] = h[3]  # a tie with itself
    exact, found = (searching.find_neighbors(h, index=index) for index in ("exact", "faiss"))
    torch.testing.assert_close(found.similarity, exact.similarity)
    assert not (found.rows == torch.arange(400)[:, None]).any()


def test_a_damaged_shard_is_named_and_written_again(run, photos, tmp_path):
    how = {"vectors": tmp_path / "vectors", "device": "cpu", "quiet": True}
    expected = selfsight.search(run, photos, outliers=True, **how)
    (file,) = how["vectors"].glob("*.parquet")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1  # in a vector: still a Parquet file
    for data in (bytes(flipped), whole[:-9], b"", b"text"):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"shard-00000\.parquet is damaged.*Delete it"):
            selfsight.search(run, photos, outliers=True, **how)
    file.unlink()
    assert selfsight.search(run, photos, outliers=True, **how) == expected


def test_a_name_that_a_list_cannot_hold_is_left_out_and_counted(run, photos, tmp_path, capsys):
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    for name in ("a\tb.png", "a\nb.png"):
        shutil.copyfile(photos / "05.png", mixed / name)
    words = ["--outliers", "--count", "1", "--keep", str(tmp_path / "k.txt"), "--device", "cpu"]
    main(["search", str(run.path), str(mixed), *words])
    said = capsys.readouterr().out
    assert "Wrote" in said and "2 files cannot be in a list" in " ".join(said.split())
    lines = (tmp_path / "k.txt").read_text().split("\n")
    assert len(lines) == 15 and all(line.endswith(".png") for line in lines[:-1])


def test_shards_without_a_readable_image_are_passed_over(run, photos, tmp_path):
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    for i in range(2):
        (mixed / f"{i}.png").write_bytes(b"no image")  # the first shard
    selfsight.embed(run, mixed, out=tmp_path / "v", shard_size=2, device="cpu", quiet=True)
    assert len(searching.read_vectors(tmp_path / "v").paths) == 15


def test_bad_input_gets_a_sentence(run, photos, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["search", str(run.path), str(photos)])
    assert "Give a query image, --duplicates or --outliers" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["search", str(run.path)])
    assert "Give RUN and DATA" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"missing\.png cannot be read: there is no such file"):
        selfsight.search(run, photos, tmp_path / "missing.png", vectors=tmp_path / "v", quiet=True)
    assert not (tmp_path / "v").exists()  # nothing was embedded before
    with pytest.raises(UserError, match="--keep needs images that are files"):
        selfsight.search(
            run, "digits", outliers=True, keep=tmp_path / "k.txt", device="cpu", quiet=True
        )


def test_a_run_on_tiles_lists_no_files_and_says_how_a_query_is_seen(run, photos, tmp_path):
    tiled = shutil.copytree(run.path, tmp_path / "tiled") / "recipe.json"
    settings = json.loads(tiled.read_text())
    settings["data"]["tile"] = 16
    tiled.write_text(json.dumps(settings))
    for names in ((tiled.parent, {}), (None, {"backbone": str(tiled.parent)})):
        with pytest.raises(UserError, match="sees tiles of 16 px of them"):
            selfsight.search(names[0], photos, outliers=True, keep=tmp_path / "k.txt", **names[1])
    shown = {"vectors": tmp_path / "v", "device": "cpu", "quiet": True}
    found = selfsight.search(tiled.parent, photos, photos / "03.png", **shown)
    assert found["images"] > len([*photos.iterdir()]) and "tiles of 16 px" in found["note"]


def test_the_tables_name_query_groups_and_outliers(run, photos, capsys):
    query = str(photos / "03.png")
    words = ["--duplicates", "--outliers", "--similarity", "0.9999", "--device", "cpu"]
    main(["search", str(run.path), str(photos), query, *words])
    said = capsys.readouterr().out
    for part in ("Most similar to", "03.png", "z01.png", "repeat another one", "Unlike all others"):
        assert part in said
