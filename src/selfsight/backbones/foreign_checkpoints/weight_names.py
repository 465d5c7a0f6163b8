"""Names of weights in checkpoints of other projects: find the backbone, classify the rest.

Mostly names and shapes are used. A checkpoint is a flat mapping from dotted names, which include
the keys of nested dictionaries, to values.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfsight.backbones.library_weight_names import TORCHVISION_VIT, to_ours

Checkpoint = Mapping[str, Any]


class BackboneLocation(NamedTuple):
    """A backbone in a checkpoint: the prefix of its names, and their convention."""

    prefix: str
    family: str  # resnet, numbered, vit, torchvision_vit, or named (those of a given network)


# For each family, a name that its network always has and nothing else in a file has.
ANCHORS = {
    "resnet": re.compile(r"(?P<prefix>(?:.*\.)?)layer1\.0\.conv1\.weight"),
    "numbered": re.compile(r"(?P<prefix>(?:.*\.)?)\d+\.0\.conv1\.weight"),
    # DINOv2 (arXiv:2304.07193) saves its training with blocks in chunks: blocks.0.0, blocks.1.6.
    "vit": re.compile(r"(?P<prefix>(?:.*\.)?)(blocks\.0\.norm1\.weight|blocks\.0\.0\.ls1\.gamma)"),
    "torchvision_vit": re.compile(
        r"(?P<prefix>(?:.*\.)?)encoder\.layers\.encoder_layer_0\.ln_1\.weight"
    ),
}

SELFSIGHT_RUN = "a run of selfsight"
SOLO_LEARN = "solo-learn"

# Project, pattern of the backbone's prefix, pattern of another name in the file.
WRITERS = (
    (SELFSIGHT_RUN, r"(method\.)?student\.backbone\.", r""),
    ("DINOv2 with registers", r".*", r"(.*\.)?register_tokens"),
    ("DINO", r"(teacher|student)\.(module\.)?backbone\.", r""),
    ("MoCo v1, MoCo v2 or JCL", r"(.*\.)?encoder_[qk]\.", r""),
    ("MoCo v3", r"(.*\.)?(base|momentum)_encoder\.", r""),
    ("BYOL", r"(.*[._])?online_(network|encoder|backbone).*", r""),
    (
        "Fast-MoCo",
        r"(.*\.)?(backbone|encoder\.0|bbone_ema|encoder_ema\.0)\.",
        r"(.*\.)?bbone_ema\.",
    ),
    ("SwAV", r"(.*\.)?module\.|", r"(.*\.)?prototypes\."),
    ("SimSiam", r"(.*\.)?module\.encoder\.", r"(.*\.)?predictor\."),
    ("Barlow Twins", r"(.*\.)?module\.backbone\.", r"(.*\.)?module\.bn\.running_mean"),
    ("VICReg", r"(.*\.)?module\.backbone\.", r"(.*\.)?module\.projector\."),
    ("VISSL", r".*\._feature_blocks\.", r""),
    # Every method of solo-learn trains a linear classifier beside its backbone ("encoder" in 2021).
    (SOLO_LEARN, r"(momentum_)?(backbone|encoder)\.", r"(state_dict\.)?classifier\.weight"),
    ("solo-learn, Lightly or similar", r"(.*\.)?backbone\.", r""),
)

# A teacher is the moving average of a student; it is used only if there is no student.
TEACHER = re.compile(
    r"(.*[._])?(encoder_k|momentum(_\w+)?|\w+_momentum|target(_\w+)?|\w*teacher\w*|\w*ema\w*)\..*"
)
# Only DINO (arXiv:2104.14294) evaluates its teacher.
DINO_TEACHER = re.compile(r"teacher\.(module\.)?backbone\.")

OPTIMIZER = re.compile(r"(.*\.)?(optim|scaler|lr_scheduler|scheduler|amp)\w*\..*")
QUEUE = re.compile(r"(.*\.)?\w*queue\w*")
HEAD = (
    r"(fc|heads?|classifier|linear|proj\w*|predict\w*|prototypes|pre_logits|mlp_head|neck|expander|"
    r"decoder\w*|mask_token)\b.*"
)

NUMBERED = ("layer1", "layer2", "layer3", "layer4")

# DINOv2's names where timm has others: registers, the MLP of ViT-g, blocks in chunks.
DINOV2 = (
    (r"register_tokens", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),
)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries into one with dotted names."""
    if not isinstance(value, Mapping):
        return {prefix.removesuffix("."): value}
    checkpoint: dict[str, Any] = {}
    for name, child in value.items():
        checkpoint |= flatten(child, f"{prefix}{name}.")
    return checkpoint


def find_backbones(checkpoint: Checkpoint) -> list[BackboneLocation]:
    """Find every backbone in a checkpoint by its names."""
    locations = []
    for family, anchor in ANCHORS.items():
        hits = [hit["prefix"] for name in checkpoint if (hit := anchor.fullmatch(name))]
        locations += [BackboneLocation(prefix, family) for prefix in dict.fromkeys(hits)]
    return locations


def find_network(checkpoint: Checkpoint, wanted: Iterable[str]) -> list[BackboneLocation]:
    """Find the prefixes under which a checkpoint has the most names of this network."""
    wanted = list(wanted)
    anchor = next(name for name in wanted if name.endswith("weight"))
    hits = [n.removesuffix(anchor) for n in checkpoint if n == anchor or n.endswith("." + anchor)]
    counts = {prefix: sum(prefix + name in checkpoint for name in wanted) for prefix in hits}
    family = "vit" if "blocks.0.norm1.weight" in wanted else "named"
    return [
        BackboneLocation(p, family) for p, count in counts.items() if count == max(counts.values())
    ]


def prefer_students(locations: list[BackboneLocation]) -> list[BackboneLocation]:
    """Select the candidates: DINO's teacher, else students, else all."""
    dino = [location for location in locations if DINO_TEACHER.fullmatch(location.prefix)]
    students = [location for location in locations if not TEACHER.fullmatch(location.prefix)]
    return dino or students or locations


def guess_writer(prefix: str, checkpoint: Checkpoint) -> str:
    """Guess the project that wrote a checkpoint; an empty string if unknown."""
    for writer, prefix_pattern, other in WRITERS:
        if re.fullmatch(rf"(state_dict\.|model\.)?(?:{prefix_pattern})", prefix) and (
            not other or any(re.match(other, key) for key in checkpoint)
        ):
            return writer
    return ""


def translate_name(name: str, location: BackboneLocation, stages: Mapping[str, str]) -> str:
    """Translate a name, without its prefix, to selfsight's; `stages` is for numbered names."""
    if location.family == "numbered":
        number, _, rest = name.partition(".")
        name = f"{stages.get(number, number)}.{rest}"
    if location.family in ("numbered", "resnet"):
        return name.replace(".shortcut.", ".downsample.")
    if location.family == "torchvision_vit":
        return to_ours(name, TORCHVISION_VIT)
    if location.family == "vit":
        for other, ours in DINOV2:
            name = re.sub(other, ours, name)
    return name


def stage_names(checkpoint: Checkpoint, location: BackboneLocation) -> dict[str, str]:
    """Map the numbers of a numbered ResNet to names; the children with blocks are its stages."""
    if location.family != "numbered":
        return {}
    names: dict[str, str] = {}
    suffixes = [
        name.removeprefix(location.prefix)
        for name in checkpoint
        if name.startswith(location.prefix)
    ]
    blocks = sorted(
        {int(n.split(".")[0]) for n in suffixes if re.match(r"\d+\.0\.conv1\.weight", n)}
    )
    names |= {str(number): stage for number, stage in zip(blocks, NUMBERED, strict=False)}
    for name in suffixes:
        number = name.split(".")[0]
        if re.fullmatch(r"\d+\.weight", name) and int(number) < blocks[0]:
            is_conv = getattr(checkpoint[location.prefix + name], "ndim", 0) == 4
            names[number] = "conv1" if is_conv else "bn1"
    return names


def reason_unused(name: str, value: Any, location: BackboneLocation) -> str:
    """Say why the backbone does not use a name; an empty string if unknown."""
    if OPTIMIZER.fullmatch(name):
        return "optimizer"
    if not isinstance(value, Tensor):
        return "not a weight"
    if QUEUE.fullmatch(name):
        return "queue of keys"
    if name.startswith(location.prefix):
        return "head" if re.fullmatch(HEAD, name.removeprefix(location.prefix)) else ""
    if TEACHER.fullmatch(name):
        return "momentum encoder"
    return "head" if re.fullmatch(rf"(.*[._])?{HEAD}", name) else "not of the backbone"


def names_in_file(checkpoint: Checkpoint, location: BackboneLocation) -> dict[str, str]:
    """Map selfsight's names to the names in the file, under a prefix."""
    stages = stage_names(checkpoint, location)
    in_file = [
        n for n, v in checkpoint.items() if n.startswith(location.prefix) and isinstance(v, Tensor)
    ]
    return {translate_name(n.removeprefix(location.prefix), location, stages): n for n in in_file}


def hold_same_weights(
    checkpoint: Checkpoint, one: BackboneLocation, other: BackboneLocation
) -> bool:
    """Return whether two locations hold the same weights; some files list an encoder twice."""
    a, b = names_in_file(checkpoint, one), names_in_file(checkpoint, other)
    shared = a.keys() & b.keys()
    return bool(shared) and all(torch.equal(checkpoint[a[n]], checkpoint[b[n]]) for n in shared)


def list_other_encoders(checkpoint: Checkpoint, location: BackboneLocation) -> dict[str, str]:
    """Map the names of a file's other encoders to the reason why they are unused."""
    reasons: dict[str, str] = {}
    for other in find_backbones(checkpoint):
        if other.prefix == location.prefix:
            continue
        reason = "momentum encoder" if TEACHER.fullmatch(other.prefix) else "another encoder"
        reason = (
            "the same weights again" if hold_same_weights(checkpoint, location, other) else reason
        )
        weights = names_in_file(checkpoint, other).items()
        reasons |= {
            file_name: reason for name, file_name in weights if not re.fullmatch(HEAD, name)
        }
    return reasons
