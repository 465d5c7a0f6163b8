"""Any model of timm (Wightman 2019, https://github.com/huggingface/pytorch-image-models)."""

import timm
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import UserError, nearest
from sightline.nn import Backbone


class Timm(Backbone):
    """A timm model without its classifier and with random weights."""

    def __init__(self, name: str, *, in_channels: int = 3, image_size: int = 224) -> None:
        super().__init__()
        if not timm.is_model(name):
            raise UserError(
                f'timm {timm.__version__} has no model "{name}".'
                f"{nearest(name, timm.list_models())} See timm.list_models()."
            )
        # Models with a fixed grid of patches must be told the size of their pictures.
        cfg = timm.get_pretrained_cfg(name)
        size = {"img_size": image_size} if cfg is not None and cfg.fixed_input_size else {}
        try:
            self.net = timm.create_model(
                name, pretrained=False, num_classes=0, in_chans=in_channels, **size
            )
            self.dim = self._width(in_channels, image_size)
        except Exception as error:  # each family of models refuses in its own way
            raise UserError(
                f"timm's {name} cannot take pictures of {image_size} x {image_size} with "
                f"{in_channels} channels: {error}. Choose another size of view or another model."
            ) from error

    @torch.no_grad()
    def _width(self, in_channels: int, image_size: int) -> int:
        # Asked of the network itself: models differ in what they call the width of their features.
        training = self.net.training
        features = self.net.eval()(torch.zeros(1, in_channels, image_size, image_size))
        self.net.train(training)
        return features.shape[1]

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Float[Tensor, "n d"]:
        """One feature row for each picture."""
        return self.net(x)
