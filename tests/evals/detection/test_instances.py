"""What the readers find is what was written, and what is wrong gets a sentence."""

import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pycocotools import mask as coco_mask

from selfsight.errors import UserError
from selfsight.evals.detection import (
    PUBLISHED,
    DetectionEvaluator,
    concatenate,
    load_detection_dataset,
    subset,
)
from selfsight.evals.detection.folder_or_tar import open_files
from selfsight.evals.detection.instances import (
    decode_mask,
    encode_mask,
    renumber_classes,
    training_subset,
)
from tests.evals.detection.generated_data import png, rectangles

HEIGHT, WIDTH = 40, 60


def pixels(seed=0):
    return np.random.default_rng(seed).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def annotation(image=7, category=5, box=(10, 5, 20, 15), **more):
    return {"id": 1, "image_id": image, "category_id": category, "bbox": list(box), **more}


def coco(root, *annotations, split="train", images=(7, 9), file_name="{}.png", folder=None):
    told = {
        "images": [
            {"id": i, "file_name": file_name.format(i), "height": HEIGHT, "width": WIDTH}
            for i in images
        ],
        "annotations": list(annotations),
        "categories": [{"id": 5, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / f"annotations/instances_{split}.json").write_text(json.dumps(told))
    there = root / (split if folder is None else folder)
    there.mkdir(parents=True, exist_ok=True)
    for i in images:
        (there / f"{i}.png").write_bytes(png(pixels(i)))
    return root


def test_coco_boxes_become_corners_and_categories_become_names(tmp_path):
    coco(tmp_path, annotation(area=77.0), annotation(image=7, category=2, box=(0, 0, 3, 4)))
    there = load_detection_dataset(tmp_path, "train")
    first, second = there.instances
    assert there.class_names == ("cat", "dog") and there.sizes.tolist() == [[HEIGHT, WIDTH]] * 2
    assert first.boxes.tolist() == [[10, 5, 30, 20], [0, 0, 3, 4]]
    assert first.labels.tolist() == [0, 1] and first.area.tolist() == [77, 12]
    assert len(second.boxes) == 0  # an image without objects stays
    assert there.read(1) == png(pixels(9))


@pytest.mark.parametrize("folder", ["", "train2017", "images", "images/train2017"])
def test_images_are_found_in_the_usual_folders_and_a_year_may_be_left_out(tmp_path, folder):
    coco(tmp_path, annotation(), split="train2017", folder=folder)
    assert load_detection_dataset(tmp_path, "train").read(0) == png(pixels(7))


def test_a_tar_and_a_json_say_the_same_as_the_folder(tmp_path):
    root = coco(tmp_path / "set", annotation())
    packed = tmp_path / "set.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(root, ".")
    for path in (packed, root / "annotations/instances_train.json"):
        there = load_detection_dataset(path, "train")
        assert there.instances[0].boxes.tolist() == [[10, 5, 30, 20]]
        assert [there.read(i) for i in (0, 1)] == [png(pixels(7)), png(pixels(9))]


def test_boxes_are_cut_at_the_image_and_those_outside_left_out_with_a_note(tmp_path):
    coco(
        tmp_path,
        annotation(box=(-5, 30, 20, 30)),
        annotation(box=(WIDTH + 1, 0, 5, 5)),
        annotation(box=(3, 3, 0, 5)),
    )
    there = load_detection_dataset(tmp_path, "train")
    assert there.instances[0].boxes.tolist() == [[0, 30, 15, HEIGHT]]
    assert there.notes[0].startswith("2 boxes of")


def test_a_crowd_is_kept_for_scoring_and_not_learned_from(tmp_path):
    coco(tmp_path, annotation(iscrowd=1), annotation(image=9))
    there = load_detection_dataset(tmp_path, "train")
    assert there.instances[0].crowd.tolist() == [True]
    learned = training_subset(there)
    assert learned.names == ["9.png"] and learned.read(0) == png(pixels(9))
    assert "1 of 2 images" in learned.notes[0]


def test_polygons_and_both_kinds_of_run_lengths_are_one_mask(tmp_path):
    layer = np.zeros((HEIGHT, WIDTH), bool)
    layer[5:20, 10:30] = True
    string = coco_mask.encode(np.asfortranarray(layer.astype(np.uint8)))
    string["counts"] = string["counts"].decode()
    polygon = [[10, 5, 30, 5, 30, 20, 10, 20]]
    coco(tmp_path, *(annotation(segmentation=s) for s in (polygon, encode_mask(layer), string)))
    there = load_detection_dataset(tmp_path, "train")
    assert there.has_masks
    for mask in there.instances[0].masks:
        assert np.array_equal(decode_mask(mask, HEIGHT, WIDTH), layer)


@pytest.mark.parametrize("seed", range(6))
def test_run_lengths_are_those_of_pycocotools(seed):
    layer = np.random.default_rng(seed).random((7, 5)) < seed / 5  # all zeros to all ones
    theirs = coco_mask.encode(np.asfortranarray(layer.astype(np.uint8)))
    assert coco_mask.frPyObjects(encode_mask(layer), 7, 5) == theirs
    for mask in (theirs, encode_mask(layer)):
        assert np.array_equal(decode_mask(mask, 7, 5), layer)


def test_long_runs_that_shrink_and_grow_are_read_from_their_string():
    layer = np.zeros((300, 200), bool)
    layer[5:290, 3:7] = layer[100:102, 50] = layer[:, 180:] = True
    theirs = coco_mask.encode(np.asfortranarray(layer.astype(np.uint8)))
    assert np.array_equal(decode_mask(theirs, 300, 200), layer)


def remove_an_image(root):
    (root / "train/9.png").unlink()


def break_the_json(root):
    (root / "annotations/instances_train.json").write_text('{"images": []')


def forget_the_annotations(root):
    (root / "annotations/instances_train.json").write_text('{"images": [], "categories": []}')


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove_an_image, "1 of 2 images of .* are missing, such as 9.png"),
        (break_the_json, "is not in COCO's format"),
        (forget_the_annotations, "is not in COCO's format .*annotations"),
    ],
)
def test_damaged_coco_sets_get_a_sentence(tmp_path, damage, sentence):
    damage(coco(tmp_path, annotation()))
    with pytest.raises(UserError, match=sentence):
        load_detection_dataset(tmp_path, "train")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (annotation(category=3), "category 3, which the file does not list"),
        (annotation(image=3), "image 3, which the file does not list"),
    ],
)
def test_annotations_of_strangers_get_a_sentence(tmp_path, wrong, sentence):
    coco(tmp_path, wrong)
    with pytest.raises(UserError, match=sentence):
        load_detection_dataset(tmp_path, "train")


def test_an_unknown_split_offers_the_nearest(tmp_path):
    coco(tmp_path, annotation(), split="train")
    with pytest.raises(UserError, match=r'no split "trian".*Did you mean "train"'):
        load_detection_dataset(tmp_path, "trian")


def test_places_without_annotations_get_a_sentence(tmp_path):
    with pytest.raises(UserError, match="has neither"):
        load_detection_dataset(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_detection_dataset(tmp_path / "nowhere")
    (tmp_path / "set.zip").write_bytes(b"")
    with pytest.raises(UserError, match=r"neither a folder nor a .tar"):
        load_detection_dataset(tmp_path / "set.zip")
    (tmp_path / "set.tar").write_bytes(b"no tar at all")
    with pytest.raises(UserError, match="not a tar that can be read"):
        load_detection_dataset(tmp_path / "set.tar")


VOC = """<annotation><size><width>60</width><height>40</height><depth>3</depth></size>
<object><name>{}</name><difficult>{}</difficult>
<bndbox><xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>20</ymax></bndbox></object>
</annotation>"""


def voc(root, things, split="trainval"):
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for i, (name, difficult) in enumerate(things):
        (root / f"Annotations/00{i}.xml").write_text(VOC.format(name, difficult))
        (root / f"JPEGImages/00{i}.jpg").write_bytes(png(pixels(i)))
    names = "".join(f"00{i}\n" for i in range(len(things)))
    (root / f"ImageSets/Main/{split}.txt").write_text(names)
    (root / f"ImageSets/Main/cat_{split}.txt").write_text("000 1\n")
    return root


def test_voc_pixels_count_from_one_and_their_last_belongs_to_the_box(tmp_path):
    there = load_detection_dataset(voc(tmp_path, [("dog", 0), ("cat", 1)]), "trainval")
    first, second = there.instances
    assert there.class_names == ("cat", "dog") and there.sizes.tolist() == [[40, 60]] * 2
    assert first.boxes.tolist() == [[10, 5, 30, 20]] and first.labels.tolist() == [1]
    assert first.area.tolist() == [300] and second.area.tolist() == [np.inf]  # difficult
    assert there.read(1) == png(pixels(1))


def test_two_years_of_voc_become_one_set(tmp_path):
    a = voc(tmp_path / "VOC2007", [("dog", 0)])
    b = voc(tmp_path / "VOC2012", [("cat", 0), ("dog", 0)])
    there = load_detection_dataset([a, b], "trainval")
    assert len(there) == 3
    assert [there.class_names[i.labels[0]] for i in there.instances] == ["dog", "cat", "dog"]
    assert there.read(2) == png(pixels(1))


def test_damaged_voc_sets_get_a_sentence(tmp_path):
    root = voc(tmp_path, [("dog", 0), ("cat", 0)])
    with pytest.raises(UserError, match=r'no split "trainvall".*Did you mean "trainval"'):
        load_detection_dataset(root, "trainvall")
    (root / "JPEGImages/001.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 2 files .* such as JPEGImages/001.jpg"):
        load_detection_dataset(root, "trainval")
    (root / "JPEGImages/001.jpg").write_bytes(png(pixels(1)))
    (root / "Annotations/001.xml").write_text("<annotation><size></size></annotation>")
    with pytest.raises(UserError, match=r"001.xml is not in VOC's format"):
        load_detection_dataset(root, "trainval")


def trimaps(path, masks, labels=None, names=("siamese", "pug")):
    rows = {
        "image": [{"bytes": png(pixels(i)), "path": None} for i in range(len(masks))],
        "mask": [{"bytes": png(m), "path": None} for m in masks],
    }
    if labels is not None:
        rows["label"] = labels
    told = {"info": {"features": {"label": {"names": list(names), "_type": "ClassLabel"}}}}
    table = pa.table(rows).replace_schema_metadata({"huggingface": json.dumps(told)})
    pq.write_table(table, path)
    return path


def trimap():
    mask = np.full((HEIGHT, WIDTH), 2, np.uint8)
    mask[10:20, 15:40] = 3
    mask[12:18, 17:38] = 1
    return mask


def test_a_trimap_is_one_object_of_animal_and_border(tmp_path):
    empty = np.full((HEIGHT, WIDTH), 2, np.uint8)
    path = trimaps(tmp_path / "pets.parquet", [trimap(), empty], [1, 0])
    one, by_breed = load_detection_dataset(path), load_detection_dataset(path, classes="label")
    assert one.class_names == ("animal",) and by_breed.class_names == ("siamese", "pug")
    assert one.instances[0].labels.tolist() == [0] and by_breed.instances[0].labels.tolist() == [1]
    found = one.instances[0]
    assert found.boxes.tolist() == [[15, 10, 40, 20]] and found.area.tolist() == [250]
    assert np.array_equal(decode_mask(found.masks[0], HEIGHT, WIDTH), trimap() != 2)
    assert len(one.instances[1].boxes) == 0 and one.has_masks
    assert one.read(1) == png(pixels(1))


def test_masks_that_are_no_trimaps_get_a_sentence(tmp_path):
    path = trimaps(tmp_path / "a.parquet", [np.zeros((HEIGHT, WIDTH), np.uint8)])
    with pytest.raises(UserError, match=r"values \[0\]. Expected is a trimap"):
        load_detection_dataset(path)
    path = trimaps(tmp_path / "b.parquet", [np.full((3, 4), 2, np.uint8)])
    with pytest.raises(UserError, match="must be of one size"):
        load_detection_dataset(path)
    pq.write_table(pa.table({"image": [png(pixels())]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match="no column mask"):
        load_detection_dataset(tmp_path / "c.parquet")


def test_a_test_set_with_fewer_classes_is_renumbered_by_name():
    there = rectangles(8)
    green = renumber_classes(subset(there, range(4)), ("blue", "green", "red"), "another set")
    for before, after in zip(there.instances, green.instances, strict=False):
        names = [there.class_names[i] for i in before.labels]
        assert [green.class_names[i] for i in after.labels] == names


def test_a_class_that_the_training_set_lacks_gets_a_sentence():
    with pytest.raises(UserError, match=r'class "green" that reds lacks. Did you mean "greens"'):
        renumber_classes(rectangles(2), ("red", "greens"), "reds")


def test_masks_that_are_not_there_are_missed_before_training():
    boxes = rectangles(2, masks=False)
    with pytest.raises(UserError, match="some objects of rectangles have none"):
        DetectionEvaluator(train=boxes, test=boxes, detector=PUBLISHED["coco_c4_1x"])


def test_joined_sets_read_from_their_own_files():
    a, b = rectangles(3, seed=1), rectangles(2, seed=2)
    both = concatenate([a, b])
    assert [both.read(i) for i in range(5)] == [
        a.read(0),
        a.read(1),
        a.read(2),
        b.read(0),
        b.read(1),
    ]


def test_files_of_a_tar_are_read_by_several_threads(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for i in range(50):
            entry = tarfile.TarInfo(f"f{i}")
            entry.size = 1000
            tar.addfile(entry, io.BytesIO(bytes([i]) * 1000))
    files = open_files(tmp_path / "t.tar")
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda i: files.read(f"f{i}"), range(50)))
    assert read == [bytes([i]) * 1000 for i in range(50)]
