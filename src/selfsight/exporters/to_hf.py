"""A folder that transformers opens with AutoModel or AutoModelForImageClassification.

Names are those of published checkpoints, which every version of transformers reads.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from selfsight.backbones.library_weight_names import (
    TRANSFORMERS_RESNET,
    TRANSFORMERS_VIT,
    to_theirs,
)
from selfsight.exporters.exported_encoder import ExportedEncoder, add_positions, save_weights
from selfsight.exporters.network_shape import NetworkShape, ResNetShape, ViTShape
from selfsight.run_files.json_files import write_json

RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers


def find_gap(shape: NetworkShape) -> str | None:
    """Say why transformers' ResNet and ViT cannot hold this network; None if they can."""
    if isinstance(shape, ResNetShape):
        if shape.norm != "bn":
            return "its norm layers are not batch norm"
        if shape.stem != "imagenet":
            return f'its stem is "{shape.stem}", and transformers has only "imagenet"'
        return None
    if isinstance(shape, ViTShape):
        return None if shape.is_plain else "its blocks have batch norm"
    return f"{shape.name} is not among the networks that are translated for transformers"


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    shape, transform = encoder.shape, encoder.transform
    is_vit = isinstance(shape, ViTShape)
    table = TRANSFORMERS_VIT if is_vit else TRANSFORMERS_RESNET
    weights = _split_qkv(add_positions(encoder))
    theirs = {to_theirs(name, table): value for name, value in weights.items()}
    config = _config(shape)
    if encoder.head is not None:
        theirs = {f"{config['model_type']}.{name}": value for name, value in theirs.items()}
        theirs |= encoder.head_weights("classifier" if is_vit else "classifier.1")
        names = encoder.head.class_names
        config["architectures"] = [f"{'ViT' if is_vit else 'ResNet'}ForImageClassification"]
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    save_weights(theirs, folder)
    write_json(folder / "config.json", config)
    sides = {"height": transform.resize, "width": transform.resize}
    mean, std = encoder.statistics
    processor = {
        "image_processor_type": "BitImageProcessor",  # resize, crop the center, normalize
        "do_resize": True,
        "size": {"shortest_edge": transform.resize} if transform.keep_aspect else sides,
        "resample": RESAMPLE[transform.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": transform.size, "width": transform.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        "do_convert_rgb": transform.channels == 3,
    }
    if encoder.has_photos:
        write_json(folder / "preprocessor_config.json", processor)
    auto = "AutoModel" if encoder.head is None else "AutoModelForImageClassification"
    option, feature = "", "logits"
    if encoder.head is None:
        option = ", add_pooling_layer=False" if is_vit else ""
        feature = "last_hidden_state[:, 0]" if is_vit else "pooler_output.flatten(1)"
    load = f"model = {auto}.from_pretrained(folder{option})\n"
    if not encoder.has_photos:
        result = f"model(pixel_values=transform(image)[None]).{feature}"
        return (
            f"{encoder.image_import}\nfrom transformers import {auto}\n\n{load}"
            f"{encoder.transform_lines('')}\n{encoder.image_line}\n"
            + encoder.output_lines(result, names="model.config.id2label")
        )
    result = f'model(**processor(image, return_tensors="pt")).{feature}'
    return (
        f"{encoder.image_import}\nfrom transformers import AutoImageProcessor, {auto}\n\n"
        f"processor = AutoImageProcessor.from_pretrained(folder)\n{load}{encoder.image_line}\n"
        + encoder.output_lines(result, names="model.config.id2label")
    )


def _split_qkv(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    split: dict[str, Tensor] = {}
    for name, value in weights.items():
        before, qkv, after = name.partition(".attn.qkv.")
        if qkv:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                split[f"{before}.attn.{part}.{after}"] = rows.contiguous()
        else:
            split[name] = value
    return split


def _config(shape: NetworkShape) -> dict[str, Any]:
    if isinstance(shape, ResNetShape):
        expansion = 1 if shape.block == "BasicBlock" else 4
        depths = [depth for depth in shape.depths if depth]
        widths = [shape.width * expansion * 2**stage for stage in range(len(depths))]
        return {
            "architectures": ["ResNetModel"],
            "model_type": "resnet",
            "num_channels": shape.channels,
            "embedding_size": shape.width,
            "hidden_sizes": widths,
            "depths": depths,
            "layer_type": "basic" if expansion == 1 else "bottleneck",
            "hidden_act": "relu",
            "downsample_in_first_stage": False,
            "downsample_in_bottleneck": False,
        }
    assert isinstance(shape, ViTShape)
    return {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.dim,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-6,
        "image_size": shape.image_size,
        "patch_size": shape.patch,
        "num_channels": shape.channels,
        "qkv_bias": True,
    }
