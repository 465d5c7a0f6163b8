"""The one training loop of every evaluation that trains on images: a head, maybe a backbone.

A frozen backbone stays in evaluation mode, and heads with several rates are trained at once on its
features. Otherwise a copy of it is trained, batch norm over the whole batch: the backbone that was
given never changes. Every process calls the evaluator; together they compute what one would.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.errors import UserError
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.features import AugmentedBatch, augmented_batches, eval_mode, module_device
from selfsight.evals.knn import accuracy
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear import check_has_test_images, hold_out_tenth, select_best
from selfsight.evals.randaugment import rand_augment
from selfsight.evals.regularization import (
    DropPath,
    add_drop_path,
    depths,
    erased,
    follow,
    mixed,
    place,
    soft_targets,
)
from selfsight.nn.batch_norm import convert
from selfsight.optim import Optim, build_optimizer, set_lr
from selfsight.progress import track
from selfsight.views.color import normalize

Optimizers = list[tuple[Optim, torch.optim.Optimizer]]


class Classifier(nn.Module):
    """A backbone and some heads on its features; of a frozen one only the heads have a mode."""

    def __init__(self, backbone: nn.Module, heads: nn.ModuleList, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.heads, self.frozen = backbone, heads, frozen

    def forward(
        self, x: Float[Tensor, "n c h w"], autocast: torch.dtype | None = None
    ) -> Float[Tensor, "s n k"]:
        """Logits of each head, in at least float32."""
        x = x.to(next(self.backbone.parameters(), x).dtype)
        with (
            torch.set_grad_enabled(not self.frozen),
            torch.autocast(x.device.type, autocast, enabled=autocast is not None),
        ):
            h = self.backbone(x)
        return self.logits(h.to(torch.promote_types(h.dtype, torch.float32)))

    def logits(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "s n k"]:
        """What each head says of features."""
        return torch.stack([head(h.to(next(head.parameters()).dtype)) for head in self.heads])


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifierEvaluator:
    """Share of images that a classifier trained on augmented images gets right."""

    data: LabeledData
    training: ClassifierSettings
    seed: int = 0

    def __post_init__(self) -> None:
        check_has_test_images(self.data)
        least = max(2, dist.world_size() * self._unit)
        if self.batch_size < least:
            raise UserError(
                f"A batch would have {self.batch_size} of {len(self.data.learned)} images, too "
                f"few for a batch on {dist.world_size()} process(es), which takes {least}. Add "
                "images, raise batch_size or take fewer processes."
            )

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone, which stays as it is."""
        rates = self.training.rates or (self.training.head.lr,)
        found: dict[str, float] = {}
        if len(rates) > 1:
            rates, found = self._chosen(backbone, rates)
        model, average = self.fit(backbone, self.data, rates)
        found = self._numbers(model) | found
        if average is not None:
            found["ema_accuracy"] = self._numbers(average)["accuracy"]
        return found

    @property
    def batch_size(self) -> int:
        """That of the settings, or as many images as there are where they are fewer."""
        return self._batch(self.data)

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""
        found = asdict(self.training)
        found |= {"seed": self.seed, "batch_size": self.batch_size}
        if self.batch_size < self.training.batch_size:
            found["note"] = (
                f"batch_size was {self.training.batch_size}, more than the images; rates that "
                "are scaled by the batch follow."
            )
        return found

    def _chosen(
        self, backbone: nn.Module, rates: tuple[float, ...]
    ) -> tuple[tuple[float], dict[str, float]]:
        """The rate that a held-out tenth prefers; the middle one where no class can spare any."""
        learned, y = self.data.learned, self.data.labels()[0]
        part = hold_out_tenth(y, seed=self.seed)
        if part is None:
            return (rates[len(rates) // 2],), {"rate": rates[len(rates) // 2]}
        some = self.data.only(learned[part.train])
        frozen = self.training.backbone is None
        logits: list[Tensor] = []
        for group in [rates] if frozen else [(rate,) for rate in rates]:
            model, _ = self.fit(backbone, some, group)
            rest = replace(some, test=None, split=None, few=learned[part.test])
            tried = rest.scored(model.backbone)
            logits.append(model.logits(tried.h))
        choice = select_best(torch.cat(logits).detach(), y[part.test].to(logits[0].device))
        rate = rates[choice.winner]
        return (rate,), {"rate": rate, "held_out_accuracy": choice.accuracy}

    def fit(
        self, backbone: nn.Module, data: LabeledData, rates: tuple[float, ...]
    ) -> tuple[Classifier, Classifier | None]:
        """A classifier with a head for each rate, and its moving average if there is one."""
        training, strong = self.training, self.training.strong
        device = data.device or module_device(backbone)
        frozen = training.backbone is None
        if not frozen:
            own = next(backbone.parameters())
            backbone = convert(copy.deepcopy(backbone), None).to(device, own.dtype)
            backbone.requires_grad_(True)
        layers = {} if strong.layer_decay is None or frozen else depths(backbone)
        optimizers = self._backbone_optimizers(backbone, layers)
        drops = [] if frozen else add_drop_path(backbone, strong.drop_path)
        dim = _width(backbone, data, device)
        heads = nn.ModuleList(self._head(dim, data.num_classes, device) for _ in rates)
        model = Classifier(backbone, heads, frozen=frozen)
        for rate, head in zip(rates, heads, strict=True):
            config = replace(training.head, lr=rate)
            made = build_optimizer(config, head.named_parameters(), batch_size=self.batch_size)
            optimizers.append((config, made))
        average = copy.deepcopy(model) if strong.ema is not None else None
        with torch.enable_grad(), eval_mode(backbone):  # gives every part its own mode back
            backbone.train(not frozen)
            for step, drawn, y in self._batches(data, device):
                self._step(model, drawn, y, optimizers, drops, step, data)
                if average is not None and strong.ema is not None:
                    follow(average, model, strong.ema)
        return model, average

    def _step(
        self,
        model: Classifier,
        drawn: AugmentedBatch,
        y: Tensor,
        optimizers: Optimizers,
        drops: list[DropPath],
        step: int,
        data: LabeledData,
    ) -> None:
        strong, seed = self.training.strong, self.seed
        x = drawn.x
        if strong.rand_augment is not None:
            x = rand_augment(
                x,
                drawn.index,
                magnitude=strong.rand_augment,
                std=strong.rand_augment_std,
                mean=data.spec.mean,
                seed=seed,
                at=drawn.at,
            )
            x = normalize(x, data.spec.mean, data.spec.std)
        x = erased(x, drawn.index, strong.erase, seed=seed, at=drawn.at)
        targets = soft_targets(y, data.num_classes, strong.smoothing)
        x, targets = mixed(x, targets, strong, seed=seed, step=step)
        batch = self._batch(data)
        place(drops, torch.arange(batch, device=x.device)[self._mine(batch)], seed=seed, step=step)

        if x.is_cuda:  # convolutions run up to twice as fast in this layout
            x = x.contiguous(memory_format=torch.channels_last)
        log_p = model(x, self._autocast(x.device)).log_softmax(dim=-1)  # [S, n, K]
        # Heads of several rates do not meet: the gradient of each is that of its own mean. That is
        # over the whole batch, of which processes may hold uneven shares.
        loss = -(targets * log_p).sum() * (dist.world_size() / batch)
        for _, optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        _average([p for _, o in optimizers for g in o.param_groups for p in g["params"]])
        for config, optimizer in optimizers:
            set_lr(
                optimizer,
                config,
                step=step,
                steps_per_epoch=self._steps(data),
                epochs=self.training.epochs,
                batch_size=self.batch_size,
            )
            optimizer.step()

    def _batches(
        self, data: LabeledData, device: torch.device
    ) -> Iterator[tuple[int, AugmentedBatch, Int64[Tensor, " n"]]]:
        """Step, views and labels of this process's part of each batch."""
        spec, per_epoch = data.spec, self._steps(data)
        if self.training.strong.rand_augment is not None:  # wants plain colors
            spec = replace(spec, mean=(0.0,), std=(1.0,))
        total = self.training.epochs * per_epoch
        views = augmented_batches(
            data.train,
            (self._rows(data, step) for step in range(total)),
            self.training.view(spec),
            seed=self.seed,
            device=device,
        )
        assert data.train.labels is not None
        labels = data.train.labels.to(device)
        title = f"training, {self.training.epochs} epochs" if data.progress else None
        for step, drawn in enumerate(track(views, title, total)):
            yield step, drawn, labels[drawn.index]

    def _rows(self, data: LabeledData, step: int) -> list[tuple[int, Int64[Tensor, " _"]]]:
        """This process's images of a step, those of each repeat with a number of its own.

        A repeated image stands `repeats` times in a row of the epoch's order, and an epoch is as
        long as without (repeated augmentation, arXiv:1901.09335). In a batch, first repeats come
        first, so that neighbors are other images.
        """
        repeats = self.training.strong.repeats
        batch = self._batch(data)
        epoch, number = divmod(step, self._steps(data))
        position = number * batch + torch.arange(batch)
        copies = position % repeats
        order = copies.sort(stable=True).indices
        key = rng.key(self.seed, "order")
        learned = data.learned
        index = learned[rng.shuffled(key, len(learned), position[order] // repeats, at=epoch)]
        mine, whose = index[self._mine(batch)], copies[order][self._mine(batch)]
        return [(epoch * repeats + r, mine[whose == r]) for r in whose.unique().tolist()]

    def _batch(self, data: LabeledData) -> int:
        return min(self.training.batch_size, len(data.learned)) // self._unit * self._unit

    @property
    def _unit(self) -> int:
        """Images are mixed in pairs, and a pair must not lie on two processes."""
        return 2 if self.training.strong.mixup or self.training.strong.cutmix else 1

    def _mine(self, batch: int) -> slice:
        return dist.shard_slice(batch, self._unit)

    def _steps(self, data: LabeledData) -> int:
        return len(data.learned) // self._batch(data)

    def _head(self, dim: int, num_classes: int, device: torch.device) -> nn.Linear:
        """Small normal weights and no bias, from the seed alone."""
        head = nn.Linear(dim, num_classes, device=device)
        rows = torch.arange(num_classes)
        drawn = rng.normal(rng.key(self.seed, "head"), rows, dim)
        with torch.no_grad():
            head.weight.copy_(self.training.head_std * drawn)
            head.bias.zero_()
        return head

    def _backbone_optimizers(self, backbone: nn.Module, layers: dict[str, int]) -> Optimizers:
        config = self.training.backbone
        if config is None:
            return []
        groups: dict[int, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in backbone.named_parameters():
            groups.setdefault(layers.get(name, 0), []).append((name, parameter))
        made: Optimizers = []
        top = max(groups) + 1  # the head is the layer above
        for layer, parameters in groups.items():
            factor = (self.training.strong.layer_decay or 1.0) ** (top - layer if layers else 0)
            own = replace(config, lr=config.lr * factor)
            made.append((own, build_optimizer(own, parameters, batch_size=self.batch_size)))
        return made

    def _autocast(self, device: torch.device) -> torch.dtype | None:
        if self.data.autocast is not None:
            return self.data.autocast
        return torch.bfloat16 if device.type == "cuda" else None

    @torch.no_grad()
    def _numbers(self, model: Classifier) -> dict[str, float]:
        # Who trains on bicubic crops scores such (DeiT, Fast-MoCo).
        spec = replace(self.data.spec, interpolation=self.training.interpolation)
        test = replace(self.data, spec=spec).scored(model.backbone)
        assert test.y is not None
        logits = model.logits(test.h)[0]
        found = {"accuracy": accuracy(logits.argmax(dim=1), test.y)}
        if self.data.num_classes > 5:
            five = (logits.topk(5).indices == test.y[:, None]).any(dim=1)
            found["top5"] = five.double().mean().item()
        return found


def _average(parameters: list[nn.Parameter]) -> None:
    """Give every process the mean gradient, in one message."""
    if dist.world_size() == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = dist.mean(torch.cat([g.flatten() for g in grads]))
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def _width(backbone: nn.Module, data: LabeledData, device: torch.device) -> int:
    """Width of the features, asked of the network with an image, which it may refuse."""
    one = replace(data, few=data.learned[:1], test=None, split=None, progress=False, device=device)
    return one.features(backbone)[0].h.shape[1]
