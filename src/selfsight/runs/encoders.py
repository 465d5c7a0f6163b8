"""Networks to be measured: a run's encoder, the same untrained, or any other that a word names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import UserError, nearest
from selfsight.nn import Backbone, Encoder
from selfsight.nn.encoder import fresh
from selfsight.recipe import Recipe, from_dict
from selfsight.run_folder import Run, read_json
from selfsight.train import checkpoint
from selfsight.train.pretrain import build
from selfsight.views import EvalView, for_channels

IMAGE_SIZE = 224  # of encoders that do not say what they were made for
UNTRAINED = "untrained"
Source = Literal["backbone", "projector"]


class Candidate(NamedTuple):
    """A network to be measured, and the view that its images are shown in."""

    word: str  # what the table calls it
    network: nn.Module
    spec: EvalView
    student: Encoder | None = None  # of a run: backbone and projector
    weights: Sequence[Mapping[str, str]] = ()  # of a file: what became of each


class Projected(nn.Module):
    """A student's backbone and projector as one network of features."""

    def __init__(self, student: Encoder) -> None:
        super().__init__()
        self.student = student

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """The embedding of each image."""
        return self.student(x)[1]


def saved_recipe(run: Run, *, allow: str | None = None) -> Recipe:
    """The recipe of a run folder."""
    return from_dict(read_json(run.recipe_path) or {}, allow=allow)


def trained_student(run: Run, recipe: Recipe, device: torch.device) -> Encoder:
    """The student with the weights of the last checkpoint."""
    saved = checkpoint.load(run, device)
    if saved is None:
        raise UserError(
            f"{run.path} has no checkpoint yet: the run has not finished its first epoch. "
            f"Go on with: selfsight resume {run.path}"
        )
    student, prefix = build(recipe, device).student, "student."
    weights = {k: v for k, v in saved["method"].items() if k.startswith(prefix)}
    student.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items()})
    return student


def trained_backbone(run: Run, recipe: Recipe, device: torch.device) -> Backbone:
    """The student's backbone with the weights of the last checkpoint."""
    return trained_student(run, recipe, device).backbone


def evaluation_view(recipe: Recipe, image_size: int | None = None) -> EvalView:
    """The evaluation view of a run's first view, or of another size."""
    first = recipe.views[0]
    size = image_size or first.size
    view = EvalView(size=size, resize=resize_for(size), mean=first.mean, std=first.std)
    return for_channels(view, recipe.data.channels)


def resize_for(size: int) -> int:
    """The whole image for small views; the middle 7/8 for large ones, as is usual."""
    return size if size < 96 else size * 8 // 7


def candidate(
    word: str,
    device: torch.device,
    source: str = "backbone",
    image_size: int | None = None,
    *,
    trust: bool = False,
    part: str | None = None,
) -> Candidate:
    """A run's encoder or any other's, with the view that it expects."""
    if source not in get_args(Source):
        raise UserError(
            f'features is "{source}"; give backbone or projector.'
            f"{nearest(source, get_args(Source))}"
        )
    run = Run(Path(word))
    if run.recipe_path.exists():
        recipe = saved_recipe(run)
        student = trained_student(run, recipe, device)
        spec = evaluation_view(recipe, image_size)
        return Candidate(word, _part(student, source), spec, student)
    if source != "backbone":
        raise UserError(f"{word} has no projector: --features projector needs a run folder.")
    from selfsight.backbones.foreign_checkpoints.load import open_backbone  # imports timm: a second

    backbone, about = open_backbone(
        word, image_size=image_size, device=device, trust=trust, part=part
    )
    console = Console(stderr=True, quiet=dist.rank() != 0)
    console.print(about.sentence(), highlight=False, markup=False)
    size = image_size or about.image_size or IMAGE_SIZE
    spec = EvalView(size=size, resize=resize_for(size))
    if about.mean and about.std:
        spec = replace(spec, mean=about.mean, std=about.std)
    return Candidate(word, backbone, spec, weights=about.table())


def untrained(first: Candidate, device: torch.device, source: str = "backbone") -> Candidate:
    """The same network without training: a run's own first weights, or weights drawn anew."""
    if first.student is None:
        torch.manual_seed(0)
        return first._replace(word=UNTRAINED, network=fresh(first.network), weights=())
    student = build(saved_recipe(Run(Path(first.word))), device).student
    return Candidate(UNTRAINED, _part(student, source), first.spec, student)


def _part(student: Encoder, source: str) -> nn.Module:
    return student.backbone if source == "backbone" else Projected(student)
