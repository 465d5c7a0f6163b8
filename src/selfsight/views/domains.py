"""Views by domain: augmentations that do not change what the images of a field show.

A photograph has an orientation, and its colors depend on the light. Microscopy and satellite images
have no orientation and a known scale: they can be rotated by right angles and mirrored, and crops
keep the scale (their zoom differs by at most 1.3). Documents can be rotated, but mirrored text is
not text.
"""

from dataclasses import replace
from typing import Any

from selfsight.data.pixel_statistics import PixelKind
from selfsight.views.view_settings import View, for_channels

ANY_SIDE = 0.75  # probability of a rotation: with a flip, all eight orientations are equally likely
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


CHANGES = {
    "photographs": "cropped at any scale and mirrored",
    "microscopy": "crops keep the scale, are turned and mirrored",
    "satellite": "crops keep the scale, are turned and mirrored",
    "documents": "crops keep the scale and are turned, not mirrored",
}


def for_domain(view: View, domain: str) -> View:
    """Restrict a view to what a domain allows; its size, blur and small crops do not change."""
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

    Without a domain, images without an orientation are treated as microscopy or satellite images;
    images with an orientation are scenes, whose distance and scale vary.
    """
    view = for_domain(view, resolve_domain(kind, domain))
    view = for_channels(view, kind.channels, is_color=kind.is_color)
    return replace(view, low=kind.low, high=kind.high, mean=kind.mean, std=kind.std)


def resolve_domain(kind: PixelKind, domain: str) -> str:
    """Replace "auto" by the domain that suits the images."""
    if domain != "auto":
        return domain
    return "photographs" if kind.has_up else "microscopy"


def describe_kind(kind: PixelKind | None, domain: str) -> str:
    """Say what the views do to images of this kind, and why; empty for photographs."""
    if kind is None:
        return "" if domain in ("auto", "photographs") else f"of {domain}: {CHANGES[domain]}"
    color = "" if kind.is_color else ", no color is changed"
    why = f"for {domain}"
    if domain == "auto":
        why = f"since they have {'an' if kind.has_up else 'no'} orientation"
    chosen = CHANGES[resolve_domain(kind, domain)]
    return f"not photographs ({kind.name}): {chosen}, {why}{color}"
