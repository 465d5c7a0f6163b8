"""Each target is loaded strictly by its own library, and gives the features of the run."""

import json

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import selfsight
from selfsight.backbones import library_weight_names
from selfsight.backbones.foreign_checkpoints.load_backbone import load_backbone
from selfsight.backbones.resnet import BasicBlock, Bottleneck, ResNet
from selfsight.backbones.vit import ViT
from selfsight.cli.main import main
from selfsight.data.eval_transform import EvalTransform, standard_transform
from selfsight.encoders.load_run_networks import RunCheckpoint
from selfsight.errors import UserError
from selfsight.exporters.export_encoder import TARGETS, check_carries, describe_encoder
from selfsight.exporters.model_card import describe_origin
from selfsight.nn.batch_norm import convert_batch_norm
from selfsight.nn.group_and_layer_norm import replace_batch_norm
from selfsight.train import checkpoint
from tests.exporters import detectron2_stand_in
from tests.exporters.saved_run import save_photo, save_run, shake

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def small_vit(**settings):
    return shake(ViT(24, 2, 3, patch=8, image_size=40, **settings))


def without_batch_norm(norm):
    return replace_batch_norm(
        convert_batch_norm(ResNet(BasicBlock, (1, 1, 1, 1), width=8), None), norm
    )


NETWORKS = {
    "imagenet": lambda: shake(ResNet(BasicBlock, (1, 1, 1, 1))),
    "gray": lambda: shake(ResNet(BasicBlock, (1, 1, 1, 1), in_channels=1)),
    "lowres_pad2_4": lambda: shake(
        ResNet(BasicBlock, (1, 1, 1, 1), stem="lowres_pad2", in_channels=4)
    ),
    "narrow_half": lambda: shake(ResNet(BasicBlock, (1, 1, 1, 0), width=8, stem="half")),
    "narrow": lambda: shake(ResNet(BasicBlock, (1, 1, 1, 0), width=8)),
    "ws": lambda: without_batch_norm("ws"),
    "ln": lambda: without_batch_norm("ln"),
    "vit": small_vit,
    "vit_gray": lambda: small_vit(in_channels=1),
    "vit_bn": lambda: small_vit(mlp_norm="bn"),
}
EVERYTHING = set(TARGETS)
CARRIED = {  # detectron2 has depths of its own
    "imagenet": EVERYTHING - {"detectron2"},
    "gray": EVERYTHING - {"detectron2"},
    "lowres_pad2_4": {"safetensors", "torchvision", "timm", "onnx"},
    "narrow_half": {"safetensors", "onnx"},
    "narrow": {"safetensors", "hf", "onnx"},
    "ws": {"safetensors", "onnx"},
    "ln": {"safetensors", "onnx"},
    "vit": EVERYTHING - {"detectron2"},
    "vit_gray": EVERYTHING - {"detectron2"},
    "vit_bn": {"safetensors", "onnx"},
}


def encoder_of(name):
    network = NETWORKS[name]().eval()
    conv = network.patch_embed.proj if isinstance(network, ViT) else network.conv1
    size = 40 if isinstance(network, ViT) else 32
    statistics = {"mean": (0.5, 0.4, 0.3, 0.2), "std": (0.2, 0.25, 0.3, 0.35)}
    values = {k: v[: conv.in_channels] for k, v in statistics.items()}
    transform = EvalTransform(size=size, resize=size + 4, channels=conv.in_channels, **values)
    return describe_encoder(network, transform)


def differences(target, encoder, folder, monkeypatch, **settings):
    """Relative differences of the features: from the file of an image, and of the network alone.

    Both by the lines that the export prints.
    """
    folder.mkdir()
    monkeypatch.chdir(folder.parent)
    save_photo("photo.jpg", size=(78, 61))  # whose crops have no half pixels, which all round alike
    names = {"folder": str(folder)}
    exec(TARGETS[target].write(encoder, folder, **settings), names)
    x = encoder.transform(Image.open("photo.jpg").convert(MODES[encoder.transform.channels]))[None]
    with torch.no_grad():
        expected = encoder.network(x)
        found = [torch.as_tensor(names["features"]).detach()]
        found += [names["model"](x)] if target in ("safetensors", "torchvision", "timm") else []
    return [float((h - expected).abs().max() / expected.abs().max()) for h in found]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("narrow_half", "safetensors"),
        ("ws", "safetensors"),
        ("vit_bn", "safetensors"),
        ("vit_gray", "torchvision"),
        ("lowres_pad2_4", "timm"),
        ("vit", "timm"),
        pytest.param("ln", "safetensors", marks=pytest.mark.slow),
        pytest.param("imagenet", "torchvision", marks=pytest.mark.slow),
        pytest.param("gray", "timm", marks=pytest.mark.slow),
        pytest.param("lowres_pad2_4", "torchvision", marks=pytest.mark.slow),
    ],
)
def test_the_lines_load_strictly_and_give_the_features(name, target, tmp_path, monkeypatch):
    image, network = differences(target, encoder_of(name), tmp_path / "out", monkeypatch)
    assert network < 1e-6
    assert image < (1e-2 if target == "timm" else 1e-6)  # timm resizes with Pillow


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet", "narrow", "vit", "vit_gray"])
def test_transformers_loads_every_weight_and_gives_the_features(name, tmp_path, monkeypatch):
    from transformers import AutoModel

    assert max(differences("hf", encoder_of(name), tmp_path / "out", monkeypatch)) < 1e-6
    options = {"add_pooling_layer": False} if name.startswith("vit") else {}
    _, found = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True, **options)
    assert not any(found.values()), found


@pytest.mark.slow
def test_onnx_runtime_gives_the_features_of_any_number_and_size(tmp_path, monkeypatch):
    import onnxruntime

    encoder, out = encoder_of("vit_bn"), tmp_path / "out"
    assert max(differences("onnx", encoder, out, monkeypatch, with_transform=True)) < 1e-5
    session = onnxruntime.InferenceSession(out / "model.onnx")
    rng = np.random.default_rng(0)
    for count, height, width in ((1, 40, 40), (3, 33, 90), (1, 200, 120), (1, 5, 700)):
        images = rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
        with torch.no_grad():
            expected = encoder.network(encoder.transform(list(images))).numpy()
        assert np.abs(session.run(None, {"images": images})[0] - expected).max() < 1e-4


@pytest.mark.parametrize("depth", [pytest.param(18, marks=pytest.mark.slow), 50])
def test_detectron2_loads_every_name_and_gives_the_features(depth, tmp_path, monkeypatch):
    detectron2_stand_in.install(monkeypatch)
    network = ResNet(Bottleneck, (3, 4, 6, 3), width=8, in_channels=1)
    if depth == 18:
        network = ResNet(BasicBlock, (2, 2, 2, 2))
    channels = network.conv1.in_channels
    encoder = describe_encoder(shake(network), standard_transform(32, channels=channels))
    assert max(differences("detectron2", encoder, tmp_path / "out", monkeypatch)) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_target_cannot_hold_is_refused_with_one_that_can(name):
    shape = encoder_of(name).shape
    for target in TARGETS:
        if target in CARRIED[name]:
            check_carries(target, shape)
            continue
        with pytest.raises(UserError, match=rf"--to {target} cannot hold") as refusal:
            check_carries(target, shape)
        assert {w for w in str(refusal.value).replace(".", "").split() if w in TARGETS} >= {
            *CARRIED[name],
            target,
        }


@pytest.mark.parametrize(
    "table",
    [
        library_weight_names.TORCHVISION_VIT,
        library_weight_names.TRANSFORMERS_VIT,
        library_weight_names.TRANSFORMERS_RESNET,
        library_weight_names.DETECTRON2_RESNET,
    ],
)
def test_names_translated_there_and_back_are_the_same(table):
    for network in (ResNet(Bottleneck, (1, 2, 1, 1), width=8), small_vit()):
        theirs = {
            name: library_weight_names.to_theirs(name, table) for name in network.state_dict()
        }
        assert len(set(theirs.values())) == len(theirs)
        for name, translated in theirs.items():
            assert library_weight_names.to_ours(translated, table) == name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "mine", name="resnet10_narrow", image_size=32)


def test_a_run_is_exported_with_card_values_and_license(run, capsys, tmp_path):
    out = tmp_path / "new" / "folder"
    words = ["--to", "safetensors", "--out", str(out), "--license", "apache-2.0", "--json"]
    main(["export", str(run.path), *words])
    written = json.loads(capsys.readouterr().out)
    assert sorted(written["files"]) == ["README.md", "model.safetensors", "preprocessing.json"]
    names = {}
    exec(written["lines"].partition("image = ")[0], names)
    encoder = selfsight.load(run)
    weights = encoder.backbone.state_dict()
    assert all(torch.equal(v, weights[k]) for k, v in names["model"].state_dict().items())
    assert names["transform"] == encoder.transform
    card = (out / "README.md").read_text()
    assert "license: apache-2.0" in card and "2 epochs on 24 images" in card
    assert "photos" not in card.replace("photo.jpg", "")  # the name of the data may be private
    values = json.loads((out / "preprocessing.json").read_text())
    assert (values["size"], values["mean"]) == (32, [0.485, 0.456, 0.406])
    # What was exported can be imported.
    backbone, report = load_backbone(str(out / "model.safetensors"), stem="half")
    assert (report.image_size, report.mean) == (32, (0.485, 0.456, 0.406))  # its own, not 224
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), encoder(x))


def test_a_file_of_weights_is_exported_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = shake(ResNet(BasicBlock, (1, 1, 1, 1)))
    save_file(network.state_dict(), "weights.safetensors")
    written = selfsight.export(backbone="weights.safetensors", to="timm", quiet=True)
    assert written["folder"] == "exports/weights.safetensors-timm"
    exported = load_file("exports/weights.safetensors-timm/model.safetensors")
    assert all(torch.equal(exported[k], v) for k, v in network.state_dict().items())
    assert written["license"] is None


def test_an_unfinished_run_is_exported_and_said_to_be_so(run, tmp_path, capsys):
    run.log({"step": 3, "epoch": 1.0})
    selfsight.export(run, to="safetensors", out=tmp_path / "out")
    run.log_path.unlink()
    said = "resnet10: Trained without labels by simsiam, 1 of 2 epochs on 24 images."
    assert said in capsys.readouterr().out
    assert said.partition(": ")[2] in (tmp_path / "out/README.md").read_text()


def test_an_existing_folder_is_replaced_only_with_overwrite(run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    selfsight.export(run, to="safetensors", out=out, license="mit", quiet=True)
    with pytest.raises(UserError, match=r"holds an export. Add --overwrite"):
        selfsight.export(run, to="safetensors", out=out, quiet=True)
    monkeypatch.setattr(TARGETS["safetensors"], "write", nn.Module)  # fails
    with pytest.raises(TypeError):
        selfsight.export(run, to="safetensors", out=out, overwrite=True, quiet=True)
    assert "mit" in (out / "README.md").read_text() and [p.name for p in tmp_path.iterdir()] == [
        "out"
    ]
    monkeypatch.undo()
    selfsight.export(run, to="safetensors", out=out, overwrite=True, quiet=True)
    assert "mit" not in (out / "README.md").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not an earlier export"):
        selfsight.export(run, to="timm", out=tmp_path / "other", overwrite=True, quiet=True)


def test_mistakes_get_a_sentence(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="Give --to"):
        selfsight.export(run)
    with pytest.raises(UserError, match="one of them"):
        selfsight.export(to="timm")
    with pytest.raises(UserError, match="is not a run folder"):
        selfsight.export(tmp_path / "none", to="timm")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own type checks
    with pytest.raises(UserError, match=r'to is "onx"; it must be one of safetensors, torch'):
        selfsight.export(run, to="onx")
    with pytest.raises(UserError, match="--with-transform is for --to onnx"):
        selfsight.export(run, to="timm", with_transform=True)
    begun = save_run(tmp_path / "begun", name="resnet8_narrow", image_size=32)
    (begun.checkpoints / "last.pt").unlink()
    with pytest.raises(UserError, match="no checkpoint yet"):
        selfsight.export(begun, to="timm")
    with pytest.raises(RuntimeError, match=r"/proc/out cannot be written"):
        selfsight.export(run, to="timm", out="/proc/out")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'selfsight\[onnx\]'"):
        selfsight.export(run, to="onnx")


def test_the_card_of_a_kept_checkpoint_tells_its_own_epochs(tmp_path):
    run = save_run(tmp_path / "run", name="resnet8_narrow", image_size=32)
    run.log({"step": 3, "epoch": 1.0})
    run.log({"step": 6, "epoch": 2.0})
    run.write_result("verdict", {"sentence": "It learned."})
    state = checkpoint.load(run)
    checkpoint.keep(run, state | {"step": 3}, 1)
    kept = run.checkpoints / "epoch_1.pt"
    whole = " ".join(describe_origin("run", RunCheckpoint(run)))
    assert "2 epochs on 24 images" in whole and "It learned." in whole
    part = " ".join(describe_origin("run", RunCheckpoint(run, kept)))
    assert "1 of 2 epochs" in part and "It learned." not in part


def test_an_export_into_the_current_folder_works(tmp_path, monkeypatch):
    run = save_run(tmp_path / "run", name="resnet8_narrow", image_size=32)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    selfsight.export(run, to="safetensors", out=".", quiet=True)
    assert (tmp_path / "empty" / "README.md").exists()
