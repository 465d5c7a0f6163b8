"""Every method at a size that a test can afford, and batches for it."""

import torch
from torch import Tensor, nn

from selfsight import dist
from selfsight.methods import BASELINES, METHODS, DataInfo, Moment
from selfsight.nn import Backbone

SMALL: dict[str, dict] = {
    "barlow_twins": dict(dim=8, hidden_dim=16),
    "byol": dict(dim=8, hidden_dim=16),
    "fast_moco": dict(dim=8, predictor_dim=4),
    "instdisc": dict(dim=8, num_noise=16),
    "jcl": dict(dim=8, num_keys=3, queue_size=32, bn_group=4),
    "moco": dict(dim=8, queue_size=32, bn_group=4),
    "mocov3": dict(dim=8, hidden_dim=16),
    "msbreg": dict(num_views=3, dim=8, hidden_dim=16),
    "nnclr": dict(dim=8, hidden_dim=16, predictor_dim=12, queue_size=32, temperature=0.5),
    "simclr": dict(dim=8, hidden_dim=16),
    "simo": dict(dim=8, num_negatives=4),
    "simsiam": dict(dim=8, predictor_dim=4),
    "supervised": dict(),
    "swav": dict(dim=8, hidden_dim=16, num_prototypes=6, queue_size=16)
    | dict(queue_epoch=0, freeze_steps=0),
    "vicreg": dict(dim=8, hidden_dim=16),
}
SEED, TOTAL, GLOBAL_BATCH, NUM_IMAGES = 3, 100, 8, 40
NUM_CLASSES = 5


class Tiny(Backbone):
    """Two layers, with a norm, for tests."""

    dim = 12

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, self.dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features before any projector."""
        return self.net(x)


def make(name, **settings):
    """The method called `name`, small, with the weights of seed 0."""
    torch.manual_seed(0)
    facts = DataInfo(num_images=NUM_IMAGES, num_classes=NUM_CLASSES)
    return (METHODS | BASELINES)[name](**SMALL[name] | settings).build(Tiny(), facts)


def views(method, step=0, size=16, dtype=torch.float32):
    """This process's share of a global batch of views: related, but not alike."""
    g = torch.Generator().manual_seed(step)
    x = torch.randn(GLOBAL_BATCH, 3, size, size, generator=g, dtype=dtype)
    noise = [torch.randn(x.shape, generator=g, dtype=dtype) for _ in range(method.config.num_views)]
    small = len(noise) - getattr(method.config, "num_small", 0)  # the first small view of SwAV
    sides = [size if i < small else size // 2 for i in range(len(noise))]
    return [
        dist.local_rows((x + 0.3 * n)[..., :s, :s]).contiguous()
        for n, s in zip(noise, sides, strict=True)
    ]


def moment(step=0, total=TOTAL):
    """Where training stands at this step."""
    index = dist.local_rows((torch.arange(GLOBAL_BATCH) + step * GLOBAL_BATCH) % NUM_IMAGES)
    return Moment(
        step=torch.tensor(step),
        index=index,
        seed=SEED,
        total_steps=total,
        steps_per_epoch=10,
        labels=index % NUM_CLASSES,
    )
