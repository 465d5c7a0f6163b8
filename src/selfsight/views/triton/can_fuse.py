"""Which views the fused Triton kernels support; the others are applied by torch."""

from selfsight.data.eval_transform import HIGH, LOW
from selfsight.views.view_settings import View


def can_fuse(view: View) -> bool:
    """Return whether the kernels support the view's operations and their order.

    Gray may come before or after the blur, since both are linear, and a flip anywhere. A crop that
    is shared with the first view needs that view's random numbers, which the kernels do not have.
    """
    steps = list_steps(view)
    after_blur = steps[steps.index("blur") :] if "blur" in steps else []
    return (
        view.crop != "shared"
        and (view.low, view.high) == (LOW, HIGH)
        and {"jitter", "gray", "blur", "solarize"}.issuperset(steps)
        and "solarize" not in steps[:-1]
        and "jitter" not in after_blur
    )


def list_steps(view: View) -> list[str]:
    """The operations that a view may apply, in its order, without the flip."""
    return [name for name in view.order if view.probability(name) > 0 and name != "flip"]
