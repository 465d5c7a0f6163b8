"""Views by domain: what images of a field may be changed in without changing what they show.

A photograph has a top, and its colors depend on the light. Seen through a microscope or from above,
a thing has no top and its size is known: right-angle turns and mirror images are as good as the
image, and crops keep the scale (their zoom differs by at most 1.3). Text may lie on any side, but
its mirror image is not text.
"""

from dataclasses import replace
from typing import Any

from selfsight.data.pixel_kind import PixelKind
from selfsight.views.spec import View, for_channels

ANY_SIDE = 0.75  # probability of a turn: with a flip each of the eight orientations is as likely
SAME_SCALE: dict[str, Any] = {"scale": (0.5, 0.85), "ratio": (0.9, 1.1)}
LARGE = 0.5  # a view whose crops may take so much of the image, not the small one of multi-crop
DOMAINS: dict[str, dict[str, Any]] = {
    "photographs": {},
    "microscopy": {
        **SAME_SCALE,
        "flip": 0.5,
        "rotate": ANY_SIDE,
        "jitter": (0.4, 0.4, 0.1, 0.02),  # stains and exposure differ little
        "gray": 0.0,
        "solarize": 0.0,
    },
    "satellite": {
        **SAME_SCALE,
        "flip": 0.5,
        "rotate": ANY_SIDE,
        "jitter": (0.4, 0.4, 0.2, 0.05),
        "gray": 0.1,
        "solarize": 0.0,
    },
    "documents": {
        **SAME_SCALE,
        "flip": 0.0,
        "rotate": ANY_SIDE,
        "jitter": (0.4, 0.4, 0.1, 0.02),
        "gray": 0.2,
        "solarize": 0.0,
    },
}


def for_domain(view: View, domain: str) -> View:
    """Change a view to what a domain allows; its size, blur and small crops stay."""
    changes = dict(DOMAINS[domain])
    if view.scale[1] < LARGE:
        for name in SAME_SCALE:
            changes.pop(name, None)
    if changes.get("rotate") and "rotate" not in view.order:
        changes["order"] = (*view.order, "rotate")
    if changes and view.jitter_p == 0:
        changes.pop("jitter")
    return replace(view, **changes)


def for_kind(view: View, kind: PixelKind, domain: str) -> View:
    """Adapt a view to images that are not photographs, with the statistics of the data.

    Without a domain, color is left alone, crops keep the scale, and images are turned if no side is
    up.
    """
    if domain == "auto":
        view = for_domain(view, "microscopy")
        view = replace(view, rotate=0.0) if kind.has_up else view
    else:
        view = for_domain(view, domain)
    view = for_channels(view, kind.channels, is_color=kind.is_color)
    return replace(view, low=kind.low, high=kind.high, mean=kind.mean, std=kind.std)


def describe_kind(kind: PixelKind | None, domain: str) -> str:
    """Say what the views do to images of this kind, and why; empty for photographs."""
    if kind is None and domain in ("auto", "photographs"):
        return ""
    name = "" if kind is None else f"not photographs ({kind.name}): "
    color = "" if kind is None or kind.is_color else "no color is changed, "
    if domain == "photographs":
        return f"{name}{color}as you say they are turned and cropped like photographs"
    turned = {"documents": "turned but not mirrored"}.get(domain, "turned and mirrored")
    if domain == "auto" and kind is not None:
        turned = "mirrored, since top and bottom differ" if kind.has_up else turned
        turned += "" if kind.has_up else ", since all sides look alike"
    why = "" if domain == "auto" else f" as {domain} are"
    return f"{name}{color}crops keep the scale and are {turned}{why}"
