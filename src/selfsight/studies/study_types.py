"""Study and Arm: a table or a claim of a paper, and one training run of it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from selfsight.backbones import BACKBONES, BackboneConfig
from selfsight.errors import UserError, suggest
from selfsight.methods.base import MethodConfig
from selfsight.methods.fast_moco import FastMoCoConfig
from selfsight.methods.mocov3 import MoCoV3Config
from selfsight.recipe import Recipe
from selfsight.recipes import RECIPES

Scale = Literal["imagenet", "imagenet100", "stl10", "imagenette", "cifar10", "small"]
# Accuracies in percent; and of which less is better, the number of dips of online_knn, and the
# variance of features over the views of an image, in percent of the largest.
Measure = Literal["knn", "knn_200", "linear", "dips", "view_variance"]
SMALL_IMAGES = 5000  # of CIFAR-10's training images, at the scale `small`
SIZES = {  # training images and classes of the data sets
    "cifar10": (50_000, 10),
    "small": (50_000, 10),
    "imagenette": (9_469, 10),
    "imagenet": (1_281_167, 1_000),
}
LARGE_MARGIN = 10.0  # points; at the scale `small` whole trainings gain little more
LESS_IS_BETTER = ("dips", "view_variance")
NONE_PUBLISHED = "none published at this setting"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One training run: a named recipe, the settings that differ, and the published number."""

    name: str
    recipe: str
    """The recipe it starts from, a key of RECIPES."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that differ from the recipe's, by dotted path: {"method.queue_size": 16}."""
    published: float | None = None
    """The number in percent; None if the paper prints none, and `source` says so."""
    metric: str = "linear top-1"
    source: str
    """Paper and table of the published number."""
    scale: Scale = "imagenet"
    """The data set; a study can repeat its arms on smaller ones."""
    like: str = ""
    """The arm that this one repeats on a smaller data set, whose published number is shown."""
    line: str = ""
    """The line of the study's plot that it is a point of."""
    x: float | None = None
    """Its place on the axis of the plot: the value of what is varied."""
    cell: tuple[str, str] | None = None
    """Its row and column in the study's heat map."""

    def build(self) -> Recipe:
        """Build the recipe with the changed settings."""
        recipe: Recipe = change_settings(RECIPES[self.recipe](), self.settings)
        if self.scale == "small":
            narrow = narrow_network(recipe.backbone)
            recipe = replace(recipe, backbone=narrow, method=narrow_heads(recipe.method))
        return recipe

    @property
    def reference(self) -> str:
        """The published number with its source, or why there is none."""
        if self.published is None:
            return self.source
        return f"{self.published} % {self.metric} ({self.source})"


def cifar10_arm(
    name: str,
    recipe: str,
    settings: Mapping[str, Any],
    *,
    like: str = "",
    line: str = "",
    x: int | float | None = None,
) -> Arm:
    """An arm on CIFAR-10, of 50 epochs unless the settings say otherwise; none is published."""
    return Arm(
        name=f"cifar10_{name}",
        recipe=recipe,
        settings={"epochs": 50, **settings},
        source=NONE_PUBLISHED,
        scale="cifar10",
        like=like,
        line=line,
        x=None if x is None else float(x),
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A comparison of two arms that was claimed, to be judged over seeds."""

    text: str
    better: str
    """The arm that is claimed to be better."""
    than: str | tuple[str, ...] | float
    """The arm that it is compared with; of several, the fastest that took at least as long;
    or a published number in percent."""
    margin: float = 0.0
    """Points, or dips, by which it must be better; -1 if it may be worse by less than one."""
    measure: Measure = "linear"

    @property
    def others(self) -> tuple[str, ...]:
        """The arms of which one is compared with; none for a published number."""
        if isinstance(self.than, float):
            return ()
        return (self.than,) if isinstance(self.than, str) else self.than


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or a claim of a paper, as arms that can be trained."""

    name: str
    """The name of its file."""
    paper: str
    """The paper, with the tables and figures that the numbers come from."""
    claim: str
    """The paper's claim about the arms."""
    judged_by: str
    """The comparison that decides whether the claim holds."""
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...] = ()
    """The comparisons between arms that were or can be trained here."""
    varied: str = ""
    """What is varied: the title of the axis of its plot."""

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The data sets that it has arms on."""
        found = dict.fromkeys(arm.scale for arm in self.arms)
        return (*found, "small") if "cifar10" in found else (*found,)

    def arms_at(self, scale: str) -> tuple[Arm, ...]:
        """The arms on one data set; `small` has those of CIFAR-10, with narrow networks."""
        if scale == "small":
            return tuple(
                replace(arm, scale="small", published=None, like=arm.like or arm.name)
                for arm in self.arms_at("cifar10")
                if _queue_size(arm) <= SMALL_IMAGES
            )
        return tuple(arm for arm in self.arms if arm.scale == scale)

    def claims_at(self, scale: str) -> tuple[Claim, ...]:
        """The claims about arms on one data set.

        `small` has no published numbers, no times, and no gains that narrow networks cannot have.
        """
        names = {arm.name for arm in self.arms_at(scale)}
        claims = tuple(claim for claim in self.claims if claim.better in names)
        if scale != "small":
            return claims
        return tuple(
            claim
            for claim in claims
            if isinstance(claim.than, str) and claim.than in names and claim.margin < LARGE_MARGIN
        )


def _queue_size(arm: Arm) -> int:
    """Number of keys in the queue of an arm; 0 without one."""
    method = RECIPES[arm.recipe]().method
    size: int = arm.settings.get("method.queue_size", getattr(method, "queue_size", 0))
    return size


def narrow_network(backbone: BackboneConfig) -> BackboneConfig:
    """A network that a CPU trains in minutes, of the same kind."""
    name = "resnet8_narrow"
    if backbone.is_vit:  # with the same patches, which views have to divide into
        vit = BACKBONES[backbone.name].keywords
        name = f"vit_{'bn_' * ('mlp_norm' in vit)}narrow{vit['patch']}"
    return replace(backbone, name=name)


def narrow_heads(method: MethodConfig) -> MethodConfig:
    """Give Fast-MoCo, whose heads encode six combinations of each image, MoCo v3's width.

    With its own width a CPU would compute little else.
    """
    return replace(method, dim=MoCoV3Config.dim) if isinstance(method, FastMoCoConfig) else method


def change_settings(config: Any, settings: Mapping[str, Any]) -> Any:
    """Copy a frozen dataclass with new values at dotted paths, all replaced at once.

    The views of a recipe are adjusted to its method, unless they are given.
    """
    known = {f.name for f in fields(config)}
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = defaultdict(dict)
    for path, value in settings.items():
        name, _, rest = path.partition(".")
        if name not in known:
            owner = type(config).__name__
            raise UserError(f'{owner} has no setting "{name}".{suggest(name, known)}')
        if rest:
            nested[name][rest] = value
        else:
            changes[name] = value
    for name, inner in nested.items():
        changes[name] = change_settings(getattr(config, name), inner)
    if isinstance(config, Recipe) and "method" in changes:
        changes.setdefault("views", changes["method"].match_views(config.views))
    return replace(config, **changes)
