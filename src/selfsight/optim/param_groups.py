"""An optimizer from its settings: parameter groups, scaling by batch, the rate of each step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.optim.lamb import LAMB
from selfsight.optim.lars import LARS, LARSVariant
from selfsight.optim.schedules import Schedule, check_choice

Name = Literal["sgd", "adamw", "lars", "lamb"]
Scale = Literal["linear", "sqrt", "none"]
PredictorLR = Literal["same", "constant"]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The settings of an optimizer. Defaults: SGD as in MoCo v2; see OPTIMS for the others."""

    name: Name = "sgd"
    lr: float = 0.03  # before scaling by the batch
    scale: Scale = "linear"  # lr x batch / 256; "sqrt": lr x sqrt(batch); "none": lr
    momentum: float = 0.9  # sgd, lars
    nesterov: bool = False  # sgd
    betas: tuple[float, float] = (0.9, 0.999)  # adamw, lamb
    weight_decay: float = 1e-4
    exclude_1d: bool = False  # biases and norms: no weight decay and no adaptation
    lr_1d: float | None = None  # a rate of their own for biases and norms (Barlow Twins)
    trust_coefficient: float = 0.001  # lars
    variant: LARSVariant = "mocov3"  # lars
    clip: float | None = None  # largest norm of the whole gradient
    predictor_lr: PredictorLR = "same"  # "constant": the predictor stays at the peak rate
    schedule: Schedule = field(default_factory=lambda: Schedule(per_epoch=True))

    def __post_init__(self) -> None:
        check_choice("optim.name", self.name, get_args(Name))
        check_choice("optim.scale", self.scale, get_args(Scale))
        check_choice("optim.variant", self.variant, get_args(LARSVariant))
        check_choice("optim.predictor_lr", self.predictor_lr, get_args(PredictorLR))
        for setting, fine, expected in (
            ("lr", self.lr > 0, "a number above 0"),
            ("lr_1d", self.lr_1d is None or self.lr_1d > 0, "a number above 0, or none"),
            ("momentum", 0 <= self.momentum < 1, "a number from 0 to below 1"),
            ("betas", all(0 <= b < 1 for b in self.betas), "two numbers from 0 to below 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("trust_coefficient", self.trust_coefficient > 0, "a number above 0"),
            ("clip", self.clip is None or self.clip > 0, "a number above 0, or none"),
        ):
            if not fine:
                raise UserError(f"optim.{setting} is {getattr(self, setting)}. Give {expected}.")
        if self.nesterov and not (self.name == "sgd" and self.momentum > 0):
            raise UserError(
                "optim.nesterov is a kind of SGD's momentum. Use optim.name sgd with a momentum "
                "above 0, or leave nesterov out."
            )

    def check(self, *, epochs: int | float) -> None:
        """Refuse what cannot work in a run of this length."""
        self.schedule.check(epochs)


OPTIMS: dict[Name, Optim] = {
    "sgd": Optim(),
    # MoCo v3 with ViT: decay on everything, biases and norms included.
    "adamw": Optim(name="adamw", lr=1.5e-4, weight_decay=0.1, schedule=Schedule(warmup_epochs=40)),
    # MoCo v3 with ResNet-50, 300 epochs.
    "lars": Optim(
        name="lars",
        lr=0.3,
        weight_decay=1e-6,
        exclude_1d=True,
        schedule=Schedule(warmup_epochs=10),
    ),
    # The best of MoCo v3's ablation with ViT-B.
    "lamb": Optim(
        name="lamb",
        lr=5e-4,
        weight_decay=1e-3,
        exclude_1d=True,
        schedule=Schedule(warmup_epochs=40),
    ),
}


def scaled_lr(lr: float, scale: Scale, batch_size: int) -> float:
    """The peak rate for this global batch."""
    return {"linear": lr * batch_size / 256, "sqrt": lr * math.sqrt(batch_size), "none": lr}[scale]


def build_optimizer(
    config: Optim,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    batch_size: int,
    fused: bool | None = None,
) -> torch.optim.Optimizer:
    """The optimizer, its trainable parameters in groups that `describe_groups` shows.

    Parameters named "predictor." are a group, and biases and norms where they are treated apart.
    `fused`, which is None for where the weights are on a GPU: torch's fused kernels, and rates as
    tensors beside the weights, so that a recorded step can be replayed at another rate.
    """
    apart = config.exclude_1d or config.lr_1d is not None
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            key = name.startswith("predictor."), apart and parameter.ndim <= 1
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise UserError("There is nothing to train: no parameter requires a gradient.")

    device = next(iter(groups.values()))[0].device
    fused = device.type == "cuda" if fused is None else fused
    settings = []
    for (predictor, one_d), parameters in sorted(groups.items(), key=lambda item: item[0]):
        part = (" biases and norms" if one_d else " weights") if apart else ""
        excluded = one_d and config.exclude_1d
        base_lr = config.lr_1d if one_d and config.lr_1d is not None else config.lr
        constant = predictor and config.predictor_lr == "constant"
        lr = scaled_lr(base_lr, config.scale, batch_size)
        settings.append(
            {
                "params": parameters,
                "label": ("predictor" if predictor else "network") + part,
                "base_lr": base_lr,
                "lr": torch.tensor(lr, device=device) if fused else lr,
                "weight_decay": 0.0 if excluded else config.weight_decay,
                "adapt": config.name in ("lars", "lamb") and not excluded,
                "schedule": "constant" if constant else "main",
            }
        )
    if config.name == "sgd":
        made = torch.optim.SGD(
            settings,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            fused=fused or None,
        )
        if fused and config.momentum > 0:
            # A first step that is not taken would leave a buffer of whatever was in memory.
            for parameter in (p for group in made.param_groups for p in group["params"]):
                made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return made
    if config.name == "adamw":
        return torch.optim.AdamW(
            settings,
            lr=config.lr,
            betas=config.betas,
            fused=fused or None,
            capturable=fused and device.type == "cuda",
        )
    if config.name == "lamb":
        return LAMB(settings, lr=config.lr, betas=config.betas)
    return LARS(
        settings,
        lr=config.lr,
        momentum=config.momentum,
        trust_coefficient=config.trust_coefficient,
        variant=config.variant,
    )


def set_lr(
    optimizer: torch.optim.Optimizer,
    config: Optim,
    *,
    step: int,
    steps_per_epoch: int,
    epochs: int | float,
    batch_size: int,
) -> float:
    """Give every group the rate of this step (from 0); the network's is returned for the log."""
    rates = []
    for group in optimizer.param_groups:
        rate = scaled_lr(group["base_lr"], config.scale, batch_size)
        if group["schedule"] == "main":
            rate = float(config.schedule.lr(step / steps_per_epoch, epochs, rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
        rates.append(rate)
    return rates[0]


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Go back to a state that was saved on this or another kind of device.

    Which kernels run, and the tensors that hold the rates, stay those of this optimizer.
    """
    here = [
        {name: group[name] for name in ("lr", "fused", "foreach", "capturable") if name in group}
        for group in optimizer.param_groups
    ]
    pairs = zip(saved["param_groups"], here, strict=True)
    rates = [float(group["lr"]) for group in saved["param_groups"]]
    optimizer.load_state_dict({**saved, "param_groups": [group | own for group, own in pairs]})
    for group, own, rate in zip(optimizer.param_groups, here, rates, strict=True):
        group["lr"] = own["lr"].fill_(rate) if isinstance(own["lr"], Tensor) else rate


def clip_gradients(optimizer: torch.optim.Optimizer, config: Optim) -> Tensor | None:
    """Shorten the whole gradient to `config.clip`, if set; the length it had, on the device."""
    if config.clip is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, config.clip)


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """A row for each parameter group, to be shown at the start of a run."""
    return [
        {
            "label": group["label"],
            "tensors": len(group["params"]),
            "parameters": sum(p.numel() for p in group["params"]),
            "lr": float(group["lr"]),
            "weight_decay": group["weight_decay"],
            "adapt": group["adapt"],
            "schedule": group["schedule"],
        }
        for group in optimizer.param_groups
    ]
