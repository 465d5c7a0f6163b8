"""Names of weights in other libraries beside selfsight's: each table is read in both directions.

selfsight's ResNets have torchvision's names and its ViTs timm's. A pair is the beginning of a name,
theirs first; `#` is the number of a block. The first pair that fits is used, so a library's current
name comes before an earlier one.
"""

import re

NameTable = tuple[tuple[str, str], ...]

STAGES = (1, 2, 3, 4)
CONVS = (1, 2, 3)

TORCHVISION_VIT: NameTable = (
    ("class_token", "cls_token"),
    ("encoder.pos_embedding", "pos_embed"),
    ("conv_proj.", "patch_embed.proj."),
    ("encoder.ln.", "norm."),
    ("encoder.layers.encoder_layer_#.ln_1.", "blocks.#.norm1."),
    ("encoder.layers.encoder_layer_#.ln_2.", "blocks.#.norm2."),
    ("encoder.layers.encoder_layer_#.self_attention.in_proj_", "blocks.#.attn.qkv."),
    ("encoder.layers.encoder_layer_#.self_attention.out_proj.", "blocks.#.attn.proj."),
    ("encoder.layers.encoder_layer_#.mlp.0.", "blocks.#.mlp.fc1."),
    ("encoder.layers.encoder_layer_#.mlp.3.", "blocks.#.mlp.fc2."),
    ("encoder.layers.encoder_layer_#.mlp.linear_1.", "blocks.#.mlp.fc1."),
    ("encoder.layers.encoder_layer_#.mlp.linear_2.", "blocks.#.mlp.fc2."),
)
# As published checkpoints have them. The three parts of qkv are separate there.
TRANSFORMERS_VIT: NameTable = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("layernorm.", "norm."),
    ("encoder.layer.#.layernorm_before.", "blocks.#.norm1."),
    ("encoder.layer.#.layernorm_after.", "blocks.#.norm2."),
    ("encoder.layer.#.attention.attention.query.", "blocks.#.attn.q."),
    ("encoder.layer.#.attention.attention.key.", "blocks.#.attn.k."),
    ("encoder.layer.#.attention.attention.value.", "blocks.#.attn.v."),
    ("encoder.layer.#.attention.output.dense.", "blocks.#.attn.proj."),
    ("encoder.layer.#.intermediate.dense.", "blocks.#.mlp.fc1."),
    ("encoder.layer.#.output.dense.", "blocks.#.mlp.fc2."),
)
TRANSFORMERS_RESNET: NameTable = (
    ("embedder.embedder.convolution.", "conv1."),
    ("embedder.embedder.normalization.", "bn1."),
    *(
        (f"encoder.stages.{stage - 1}.layers.#.{theirs}.", f"layer{stage}.#.{ours}.")
        for stage in STAGES
        for theirs, ours in (
            *((f"layer.{conv - 1}.convolution", f"conv{conv}") for conv in CONVS),
            *((f"layer.{conv - 1}.normalization", f"bn{conv}") for conv in CONVS),
            ("shortcut.convolution", "downsample.0"),
            ("shortcut.normalization", "downsample.1"),
        )
    ),
)
DETECTRON2_RESNET: NameTable = (
    ("stem.conv1.norm.", "bn1."),
    ("stem.conv1.", "conv1."),
    *(
        (f"res{stage + 1}.#.{theirs}.", f"layer{stage}.#.{ours}.")
        for stage in STAGES
        for theirs, ours in (
            *((f"conv{conv}.norm", f"bn{conv}") for conv in CONVS),
            *((f"conv{conv}", f"conv{conv}") for conv in CONVS),
            ("shortcut.norm", "downsample.1"),
            ("shortcut", "downsample.0"),
        )
    ),
)


def to_ours(name: str, table: NameTable) -> str:
    """Translate a name of theirs; unknown names do not change."""
    return _translate(name, table)


def to_theirs(name: str, table: NameTable) -> str:
    """Translate a name of ours; unknown names do not change."""
    return _translate(name, tuple((ours, theirs) for theirs, ours in table))


def _translate(name: str, table: NameTable) -> str:
    for old, new in table:
        match = re.match(re.escape(old).replace(r"\#", r"(\d+)"), name)
        if match:
            number = match[1] if match.groups() else ""
            return new.replace("#", number) + name[match.end() :]
    return name
