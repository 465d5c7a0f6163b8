"""Errors for weights that would give wrong features: missing, misshapen, unknown, not finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from selfsight.errors import UserError, list_first

MAX_LISTED = 8  # names in an error message; the report has all


def check_missing(spec: str, network: str, names: list[str]) -> None:
    """Raise a UserError for weights that would keep their random initialization."""
    if names:
        raise UserError(
            f"{spec} lacks {len(names)} weights of {network}: {list_first(names, MAX_LISTED)}. "
            "They would keep their random initialization, and the features would be useless. Give "
            "a complete file, or name the network that it was made for: "
            f"NETWORK={spec.rpartition('=')[2]}"
        )


def check_shapes(spec: str, network: str, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Raise a UserError for weights of other shapes; `pairs` are the expected and the file's."""
    wrong = [
        f"{name} is {tuple(in_file.shape)} and should be {tuple(expected.shape)}"
        for name, (expected, in_file) in pairs.items()
        if expected.shape != in_file.shape
    ]
    if wrong:
        file = spec.rpartition("=")[2]
        raise UserError(
            f"{spec} looks like {network} but has weights of other shapes: "
            f"{list_first(wrong, MAX_LISTED, '; ')}. "
            f"Name the network that it was made for: timm:NAME={file} or torchvision:NAME={file}"
        )


def check_unknown(spec: str, network: str, names: list[str]) -> None:
    """Raise a UserError for weights of the backbone that the network does not have."""
    if names:
        raise UserError(
            f"{spec} has {len(names)} weights in its backbone that {network} does not have: "
            f"{list_first(names, MAX_LISTED)}. Without them the features would differ from those "
            "that were trained. Name the network that it was made for: "
            f"timm:NAME={spec.rpartition('=')[2]}"
        )


def check_finite(spec: str, weights: Mapping[str, Tensor]) -> None:
    """Raise a UserError for weights with NaN or infinity, as they are after a diverged training."""
    broken = [
        f"{name} ({int((~torch.isfinite(value)).sum())} of {value.numel()} numbers)"
        for name, value in weights.items()
        if value.is_floating_point() and not torch.isfinite(value).all()
    ]
    if broken:
        raise UserError(
            f"{spec} has NaN or infinity in {len(broken)} weights: "
            f"{list_first(broken, MAX_LISTED)}. The features would be useless. Copy or download "
            "the file again; if its training diverged, use an earlier checkpoint."
        )
