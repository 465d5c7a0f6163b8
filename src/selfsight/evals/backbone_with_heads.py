"""A backbone with linear heads, which training classifies images with."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.data.eval_transform import EvalTransform
from selfsight.evals.extract_features import encode, eval_mode


class Classifier(nn.Module):
    """A backbone and one or more linear heads; a frozen backbone gets no gradients."""

    def __init__(self, backbone: nn.Module, heads: nn.ModuleList, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.heads, self.frozen = backbone, heads, frozen

    def forward(
        self,
        x: Float[Tensor, "n c h w"],
        autocast: torch.dtype | None = None,
        compiled: nn.Module | None = None,
    ) -> Float[Tensor, "s n k"]:
        """Logits of each head, in at least float32; `compiled` replaces the backbone."""
        x = x.to(next(self.backbone.parameters(), x).dtype)
        with (
            torch.set_grad_enabled(not self.frozen),
            torch.autocast(x.device.type, autocast, enabled=autocast is not None),
        ):
            h = (self.backbone if compiled is None else compiled)(x)
        return self.logits(h.to(torch.promote_types(h.dtype, torch.float32)))

    def logits(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "s n k"]:
        """Logits of each head for these features."""
        return torch.stack([head(h.to(next(head.parameters()).dtype)) for head in self.heads])


def feature_dim(
    backbone: nn.Module,
    transform: EvalTransform,
    device: torch.device,
    autocast: torch.dtype | None,
) -> int:
    """Width of the features, measured by encoding a gray image; raises if that fails."""
    one = torch.zeros(1, transform.channels, transform.size, transform.size, device=device)
    with eval_mode(backbone):
        return encode(backbone, one, autocast).shape[1]
