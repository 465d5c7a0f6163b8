"""Any model of timm (Wightman 2019, https://github.com/huggingface/pytorch-image-models)."""

import math
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import constants
from jaxtyping import Float
from timm.data import resolve_data_config
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone

TIMEOUT = 5  # seconds to wait for the first answer of the host of published weights


class TimmBackbone(Backbone):
    """A timm model without its classifier, with random weights until `load_published` is called.

    With `image_size=None` the model has the image size of its published weights.
    """

    def __init__(self, name: str, *, in_channels: int = 3, image_size: int | None = 224) -> None:
        super().__init__()
        check_name(name)
        cfg = timm.get_pretrained_cfg(name)
        image_size = image_size or (cfg.input_size[1] if cfg is not None else 224)
        # Models with a fixed grid of patches need the image size.
        fixed = cfg is not None and cfg.fixed_input_size
        arguments: dict[str, Any] = {"num_classes": 0, "in_chans": in_channels}
        arguments |= {"img_size": image_size} if fixed else {}
        try:
            self.net = timm.create_model(name, pretrained=False, **arguments)
            self.dim = self._measure_dim(in_channels, image_size)
        except Exception as error:  # each family of models raises its own errors
            raise UserError(
                f"timm's {name} cannot take images of {image_size} x {image_size} with "
                f"{in_channels} channels: {error}. Choose another size of view or another model."
            ) from error
        self.name, self.arguments, self.image_size = name, arguments, image_size

    @torch.no_grad()
    def _measure_dim(self, in_channels: int, image_size: int) -> int:
        # Run the network: models name the dimension of their features differently.
        training = self.net.training
        features = self.net.eval()(torch.zeros(1, in_channels, image_size, image_size))
        self.net.train(training)
        return features.shape[1]

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Float[Tensor, "n d"]:
        """Return one feature vector per image."""
        return self.net(x)

    def load_published(self) -> str | None:
        """Load timm's published weights, downloaded once and cached; return their license."""
        try:
            self.net = timm.create_model(self.name, pretrained=True, **self.arguments)
        except Exception as error:  # no network, no file, another format: each raises its own type
            raise UserError(_not_fetched(self.name, error)) from error
        cfg = timm.get_pretrained_cfg(self.name)
        return None if cfg is None else cfg.license

    def resize_positions(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resize the learned positions of a ViT to another image size, as timm does."""
        net, positions = self.net, weights.get("pos_embed")
        cfg = timm.get_pretrained_cfg(self.name)
        is_own_size = cfg is None or self.image_size == cfg.input_size[1]
        if is_own_size or positions is None or not isinstance(net, VisionTransformer):
            return weights
        num_prefix = 0 if net.no_embed_class else net.num_prefix_tokens
        num_patches = positions.shape[1] - num_prefix
        if math.isqrt(max(0, num_patches)) ** 2 != num_patches:
            return weights  # not of a square: its shape is refused
        positions = resample_abs_pos_embed(
            positions, new_size=net.patch_embed.grid_size, num_prefix_tokens=num_prefix
        )
        return {**weights, "pos_embed": positions}


def check_name(name: str) -> None:
    """Raise a UserError unless timm has a model of this name."""
    if not timm.is_model(name):
        raise UserError(
            f'timm {timm.__version__} has no model "{name}".'
            f"{suggest(name, timm.list_models())} See timm.list_models()."
        )


def check_published(name: str) -> None:
    """Raise a UserError at once if timm's weights are neither cached nor reachable.

    Without a network, huggingface_hub would try for about a minute.
    """
    check_name(name)
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        raise UserError(
            f"timm {timm.__version__} has no published weights for {name}. Name another model, or "
            f"a file of weights: timm:{name}=FILE"
        )
    if cfg.hf_hub_id is None or constants.HF_HUB_OFFLINE or _is_cached(cfg.hf_hub_id):
        return
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        urllib.request.urlopen(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return  # an answer, whatever it says
    except OSError as error:
        raise UserError(_not_fetched(name, error)) from error


def _is_cached(repository: str) -> bool:
    """Whether a file of weights of this repository is in the cache of huggingface_hub."""
    name = f"models--{repository.partition('@')[0].replace('/', '--')}"
    files = Path(constants.HF_HUB_CACHE, name).glob("snapshots/*/*")
    return any(file.suffix in (".safetensors", ".bin", ".pth") for file in files)


def _not_fetched(name: str, error: Exception) -> str:
    cfg = timm.get_pretrained_cfg(name)
    where = f"{constants.ENDPOINT}/{cfg.hf_hub_id}" if cfg and cfg.hf_hub_id else "its address"
    message = str(getattr(error, "reason", error))
    reason = message.splitlines()[0] if message else type(error).__name__
    return (
        f"The weights of timm's {name} are not on this machine and could not be fetched from "
        f"{where} ({reason}). Fetch model.safetensors there, where there is a network, and name "
        f"the file: timm:{name}=FILE"
    )


def published_transform(name: str, image_size: int | None = None) -> dict[str, Any]:
    """Return fields of the import report: image size, statistics and timm's own transform.

    `native` is None for the few models that pad images or expect other than squares.
    """
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None:
        return {}
    arguments = {} if image_size is None else {"img_size": image_size}
    config = resolve_data_config(arguments, pretrained_cfg=cfg.to_dict())
    _, height, width = config["input_size"]
    about = {"image_size": height, "mean": tuple(config["mean"]), "std": tuple(config["std"])}
    if height != width or config["crop_mode"] == "border" or config["crop_pct"] > 1:
        return about
    native = EvalTransform(
        size=height,
        resize=math.floor(height / config["crop_pct"]),
        keep_aspect=config["crop_mode"] != "squash",
        interpolation=config["interpolation"],
        mean=about["mean"],
        std=about["std"],
    )
    return about | {"native": native}
