"""Classifiers of torchvision (https://github.com/pytorch/vision) without their last layer."""

from typing import Any

import torch
import torchvision
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone


class Torchvision(Backbone):
    """A torchvision classifier with random weights, up to what its last linear layer reads."""

    def __init__(self, name: str) -> None:
        super().__init__()
        refuse_name(name)
        # Those two draw weights slowly, and warn of it, unless told not to.
        inception = name in ("googlenet", "inception_v3")
        net = torchvision.models.get_model(name, **{"init_weights": False} if inception else {})
        linear = [part for part, module in net.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise UserError(
                f"torchvision's {name} has no linear layer at its end, so there are no features "
                "before it. Take another network."
            )
        parent, _, child = linear[-1].rpartition(".")
        self.dim = net.get_submodule(linear[-1]).in_features
        setattr(net.get_submodule(parent), child, nn.Identity())
        self.net = net

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Float[Tensor, "n d"]:
        """One feature row for each image."""
        return self.net(x)


def refuse_name(name: str) -> None:
    """Refuse what torchvision has no classifier for."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise UserError(
            f'torchvision {torchvision.__version__} has no classifier "{name}".'
            f"{suggest(name, known)} See torchvision.models.list_models()."
        )


def published(name: str) -> dict[str, Any]:
    """torchvision's best weights for this network, fetched once and then kept by torch."""
    refuse_name(name)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except OSError as error:
        raise UserError(
            f"The weights of torchvision's {name} are not on this machine and could not be fetched "
            f"({error}). Fetch {weights.url} where there is a network, and put it into "
            f"{torch.hub.get_dir()}/checkpoints, or name it: torchvision:{name}=FILE"
        ) from error


def expected(name: str) -> dict[str, Any]:
    """The images that these weights were measured on."""
    made = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    return {"image_size": made.crop_size[0], "mean": tuple(made.mean), "std": tuple(made.std)}
