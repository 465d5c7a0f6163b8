"""Classifiers of torchvision (https://github.com/pytorch/vision) without their last layer."""

import pickle
from typing import Any

import torch
import torchvision
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.data.eval_transform import EvalTransform, with_size
from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone


class TorchvisionBackbone(Backbone):
    """A torchvision classifier without its last linear layer, with random weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        check_name(name)
        # These two initialize slowly, with a warning, unless disabled; and torchvision's weights of
        # them expect other statistics, to which the network itself converts.
        inception = {"init_weights": False, "transform_input": True}
        settings = inception if name in ("googlenet", "inception_v3") else {}
        net = torchvision.models.get_model(name, **settings)
        linear = [child for child, module in net.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise UserError(
                f"torchvision's {name} has no linear layer at its end, so its features are "
                "unknown. Use another network."
            )
        parent, _, child = linear[-1].rpartition(".")
        self.dim = net.get_submodule(linear[-1]).in_features
        setattr(net.get_submodule(parent), child, nn.Identity())
        self.net, self.name, self.arguments, self.head = net, name, settings, linear[-1]

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Float[Tensor, "n d"]:
        """Return one feature vector per image."""
        return self.net(x)


def check_name(name: str) -> None:
    """Raise a UserError unless torchvision has a classifier of this name."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise UserError(
            f'torchvision {torchvision.__version__} has no classifier "{name}".'
            f"{suggest(name, known)} See torchvision.models.list_models()."
        )


def load_published(name: str) -> dict[str, Any]:
    """Load torchvision's best weights of a network, downloaded once and cached by torch."""
    check_name(name)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    try:
        # torchvision's default would run code that a file contains.
        return dict(weights.get_state_dict(progress=False, check_hash=True, weights_only=True))
    except pickle.UnpicklingError as error:
        raise UserError(
            f"The file of torchvision's {name} in {torch.hub.get_dir()}/checkpoints holds more "
            "than weights, and reading it would run code. Delete it, so that it is fetched again."
        ) from error
    except OSError as error:
        raise UserError(
            f"The weights of torchvision's {name} are not on this machine and could not be fetched "
            f"({error}). Fetch {weights.url} where there is a network, and put it into "
            f"{torch.hub.get_dir()}/checkpoints, or name it: torchvision:{name}=FILE"
        ) from error


def published_transform(name: str, image_size: int | None = None) -> dict[str, Any]:
    """Return fields of the import report: image size, statistics and torchvision's transform."""
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    native = EvalTransform(
        size=preset.crop_size[0],
        resize=preset.resize_size[0],
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )
    native = native if image_size is None else with_size(native, image_size)
    return {"image_size": native.size, "mean": native.mean, "std": native.std, "native": native}
