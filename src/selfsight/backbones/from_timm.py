"""Any model of timm (Wightman 2019, https://github.com/huggingface/pytorch-image-models)."""

from typing import Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone


class TimmBackbone(Backbone):
    """A timm model without its classifier, with random weights until `load_published` is called.

    With `image_size=None` the model has the image size of its published weights.
    """

    def __init__(self, name: str, *, in_channels: int = 3, image_size: int | None = 224) -> None:
        super().__init__()
        if not timm.is_model(name):
            raise UserError(
                f'timm {timm.__version__} has no model "{name}".'
                f"{suggest(name, timm.list_models())} See timm.list_models()."
            )
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

    def load_published(self) -> None:
        """Load timm's published weights, downloaded once and cached on this machine."""
        try:
            self.net = timm.create_model(self.name, pretrained=True, **self.arguments)
        except Exception as error:  # no weights, no network, no file: each raises another type
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"timm has no published weights for {self.name}, or they are not on this machine "
                f"and could not be fetched ({reason}). Fetch them where there is a network, and "
                f"name the file: timm:{self.name}=FILE"
            ) from error


def published_transform(backbone: TimmBackbone) -> dict[str, Any]:
    """Return the image size and statistics that the published weights expect."""
    cfg = backbone.net.pretrained_cfg
    return {
        "image_size": cfg["input_size"][1],
        "mean": tuple(cfg["mean"]),
        "std": tuple(cfg["std"]),
    }
