"""Heads: the layers of each paper, and a Sequential in all but the frame that a compiler sees."""

import pytest
import torch
from torch import nn

from selfsight.nn import mlp
from selfsight.nn.batch_norm import BatchNorm
from tests.methods.small import make


def test_names_and_numbers_are_those_of_a_sequential():
    torch.manual_seed(0)
    head = mlp(5, 7, 3, last_norm="scale")
    plain = nn.Sequential(*head)
    assert list(head.state_dict()) == list(plain.state_dict())
    x = torch.randn(4, 5)
    assert torch.equal(head(x), plain(x))


def describe(head):
    """Layers in a line: + is a bias, norm(scale) has no bias, norm() learns nothing."""
    norms = {(True, True): "norm", (True, False): "norm(scale)", (False, False): "norm()"}
    words = []
    for layer in head:
        if isinstance(layer, nn.Linear):
            bias = "" if layer.bias is None else "+"
            words.append(f"{layer.in_features}-{layer.out_features}{bias}")
        elif isinstance(layer, BatchNorm):
            words.append(norms[layer.weight is not None, layer.bias is not None])
        else:
            words.append(type(layer).__name__.lower())
    return " ".join(words)


# Features are 12 wide, embeddings 8, hidden layers 16 if they can be chosen.
HEADS = [
    # The released codes of Barlow Twins and VICReg: VICReg's hidden layers have biases.
    ("barlow_twins", {}, "12-16 norm relu 16-16 norm relu 16-8", None),
    ("barlow_twins", {"num_layers": 2}, "12-16 norm relu 16-8", None),
    ("vicreg", {}, "12-16+ norm relu 16-16+ norm relu 16-8", None),
    ("vicreg", {"num_layers": 2}, "12-16+ norm relu 16-8", None),
    # BYOL's configuration: only hidden layers have biases, and nothing follows the last layer.
    ("byol", {}, "12-16+ norm relu 16-8", "8-16+ norm relu 16-8"),
    ("msbreg", {}, "12-16+ norm relu 16-8", "8-16+ norm relu 16-8"),
    # main_dino.py: the layers before the last one; the norm is a setting.
    ("dino", {}, "12-16+ gelu 16-16+ gelu 16-8+", None),
    ("dino", {"head_norm": True, "num_layers": 2}, "12-16+ norm gelu 16-8+", None),
    ("instdisc", {}, "12-8+", None),
    # Fast-MoCo's code: SimSiam's heads with biases everywhere; the last norm learns.
    ("fast_moco", {}, "12-8+ norm relu 8-8+ norm relu 8-8+ norm", "8-4+ norm relu 4-8+"),
    (
        "fast_moco",
        {"hidden_dim": 16},
        "12-16+ norm relu 16-16+ norm relu 16-8+ norm",
        "8-4+ norm relu 4-8+",
    ),
    # LeJEPA's example uses torchvision's MLP.
    ("lejepa", {}, "12-16+ norm relu 16-16+ norm relu 16-8+", None),
    ("lejepa", {"num_layers": 2}, "12-16+ norm relu 16-8+", None),
    # MoCo v1 has one layer, v2 and JCL have two.
    ("moco", {"mlp": False}, "12-8+", None),
    ("moco", {}, "12-12+ relu 12-8+", None),
    ("moco", {"hidden_dim": 10}, "12-10+ relu 10-8+", None),
    ("jcl", {}, "12-12+ relu 12-8+", None),
    # NNCLR: a norm after every layer of the projector, none after the predictor.
    ("nnclr", {}, "12-16 norm relu 16-16 norm relu 16-8 norm", "8-12 norm relu 12-8+"),
    # SimCLR's code has a norm without a bias at the end, the paper's text no norm at all.
    ("simclr", {}, "12-16 norm relu 16-8 norm(scale)", None),
    ("simclr", {"num_layers": 3}, "12-16 norm relu 16-16 norm relu 16-8 norm(scale)", None),
    ("simclr", {"head_norm": False}, "12-16+ relu 16-8+", None),
    # SimSiam, section 3; on CIFAR-10 the projector has two layers.
    ("simsiam", {}, "12-8 norm relu 8-8 norm relu 8-8 norm()", "8-4 norm relu 4-8+"),
    (
        "simsiam",
        {"hidden_dim": 16, "num_layers": 2, "last_norm": "both"},
        "12-16 norm relu 16-8 norm",
        "8-4 norm relu 4-8+",
    ),
    ("swav", {}, "12-16+ norm relu 16-8+", None),
]


@pytest.mark.parametrize(
    ("name", "settings", "projector", "predictor"), HEADS, ids=[f"{h[0]} {h[1]}" for h in HEADS]
)
def test_the_heads_of_a_method_have_the_layers_of_its_paper(name, settings, projector, predictor):
    method = make(name, **settings)
    head = method.student.projector
    assert describe(head.mlp if name == "dino" else head) == projector
    assert (describe(method.predictor) if hasattr(method, "predictor") else None) == predictor


def test_dinos_layers_start_small_and_without_biases():
    """main_dino.py draws them from a truncated normal distribution of deviation 0.02."""
    torch.manual_seed(0)
    head = make("dino", hidden_dim=256).student.projector
    for layer in head.mlp:
        if isinstance(layer, nn.Linear):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert not layer.bias.any()


def test_a_free_scale_starts_at_one_so_that_logits_start_as_cosines():
    assert (make("dino", free_scale=True).student.projector.scale == 1).all()
