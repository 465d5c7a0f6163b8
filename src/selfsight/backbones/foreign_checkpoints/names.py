"""Names of weights in other people's files: where the backbone is, and what the rest is.

Works on names and shapes alone. A file is a flat table from a name, with the names of the
dictionaries around it before it, to what it holds.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

Table = Mapping[str, Any]


class Place(NamedTuple):
    """A backbone in a file: the names before its own, and whose names those are."""

    prefix: str
    family: str  # resnet, numbered, vit or torchvision_vit; named: those of a given network


# One name of each family that its network always has, and no other part of a file.
ANCHORS = {
    "resnet": re.compile(r"(?P<prefix>(?:.*\.)?)layer1\.0\.conv1\.weight"),
    "numbered": re.compile(r"(?P<prefix>(?:.*\.)?)\d+\.0\.conv1\.weight"),
    "vit": re.compile(r"(?P<prefix>(?:.*\.)?)blocks\.0\.norm1\.weight"),
    "torchvision_vit": re.compile(
        r"(?P<prefix>(?:.*\.)?)encoder\.layers\.encoder_layer_0\.ln_1\.weight"
    ),
}

OURS = "a run of selfsight"

# What the prefix, and one more name somewhere in the file, tell of who wrote it.
WRITERS = (
    (OURS, r"(method\.)?student\.backbone\.", r""),
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
    ("solo-learn, Lightly or alike", r"(.*\.)?backbone\.", r""),
)

# A teacher is the moving average of a student, and is taken only where there is no student.
TEACHER = re.compile(
    r"(.*[._])?(encoder_k|momentum(_\w+)?|\w+_momentum|target(_\w+)?|\w*teacher\w*|\w*ema\w*)\..*"
)
# DINO's paper (arXiv:2104.14294) alone evaluates its teacher.
DINO_TEACHER = re.compile(r"teacher\.(module\.)?backbone\.")

OPTIMIZER = re.compile(r"(.*\.)?(optim|scaler|lr_scheduler|scheduler|amp)\w*\..*")
QUEUE = re.compile(r"(.*\.)?\w*queue\w*")
HEAD = (
    r"(fc|heads?|classifier|linear|proj\w*|predict\w*|prototypes|pre_logits|mlp_head|neck|expander|"
    r"decoder\w*|mask_token)\b.*"
)

NUMBERED = ("layer1", "layer2", "layer3", "layer4")

# torchvision's names of a ViT's weights, and timm's, which are ours.
VIT = (
    (r"class_token", "cls_token"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"conv_proj\.", "patch_embed.proj."),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"encoder\.ln\.", "norm."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf of nested dictionaries, by the names on the way to it."""
    if not isinstance(value, Mapping):
        return {prefix.removesuffix("."): value}
    table: dict[str, Any] = {}
    for name, part in value.items():
        table |= flat(part, f"{prefix}{name}.")
    return table


def places(table: Table) -> list[Place]:
    """Every backbone that the file seems to hold."""
    found = []
    for family, anchor in ANCHORS.items():
        hits = [hit["prefix"] for name in table if (hit := anchor.fullmatch(name))]
        found += [Place(prefix, family) for prefix in dict.fromkeys(hits)]
    return found


def places_like(table: Table, wanted: Iterable[str]) -> list[Place]:
    """Every prefix under which the file has most of the names of this network."""
    wanted = list(wanted)
    anchor = next(name for name in wanted if name.endswith("weight"))
    hits = [n.removesuffix(anchor) for n in table if n == anchor or n.endswith("." + anchor)]
    counts = {prefix: sum(prefix + name in table for name in wanted) for prefix in hits}
    return [Place(p, "named") for p, count in counts.items() if count == max(counts.values())]


def preferred(found: list[Place]) -> list[Place]:
    """The places to choose from: DINO's teacher, else students, else what there is."""
    dino = [place for place in found if DINO_TEACHER.fullmatch(place.prefix)]
    students = [place for place in found if not TEACHER.fullmatch(place.prefix)]
    return dino or students or found


def writer(prefix: str, table: Table) -> str:
    """Whose file this looks like, or nothing."""
    for name, own, other in WRITERS:
        if re.fullmatch(rf"(state_dict\.|model\.)?(?:{own})", prefix) and (
            not other or any(re.match(other, key) for key in table)
        ):
            return name
    return ""


def translated(name: str, place: Place, stages: Mapping[str, str]) -> str:
    """Our name of a weight, from its name behind the prefix; `stages` is for numbered ones."""
    if place.family == "numbered":
        number, _, rest = name.partition(".")
        name = f"{stages.get(number, number)}.{rest}"
    if place.family in ("numbered", "resnet"):
        return name.replace(".shortcut.", ".downsample.")
    if place.family == "torchvision_vit":
        for theirs, ours in VIT:
            name = re.sub(theirs, ours, name)
    return name


def stages(table: Table, place: Place) -> dict[str, str]:
    """The name of each numbered part of a ResNet: those with blocks are its stages."""
    if place.family != "numbered":
        return {}
    names: dict[str, str] = {}
    own = [name.removeprefix(place.prefix) for name in table if name.startswith(place.prefix)]
    blocks = sorted({int(n.split(".")[0]) for n in own if re.match(r"\d+\.0\.conv1\.weight", n)})
    names |= {str(number): stage for number, stage in zip(blocks, NUMBERED, strict=False)}
    for name in own:
        number = name.split(".")[0]
        if re.fullmatch(r"\d+\.weight", name) and int(number) < blocks[0]:
            is_conv = getattr(table[place.prefix + name], "ndim", 0) == 4
            names[number] = "conv1" if is_conv else "bn1"
    return names


def why_left(name: str, value: Any, place: Place) -> str:
    """What a name is that the backbone at this place does not take; nothing if nobody can say."""
    if OPTIMIZER.fullmatch(name):
        return "optimizer"
    if not isinstance(value, Tensor):
        return "not a weight"
    if QUEUE.fullmatch(name):
        return "queue of keys"
    if name.startswith(place.prefix):
        return "head" if re.fullmatch(HEAD, name.removeprefix(place.prefix)) else ""
    if TEACHER.fullmatch(name):
        return "momentum encoder"
    return "head" if re.fullmatch(rf"(.*[._])?{HEAD}", name) else "not of the backbone"
