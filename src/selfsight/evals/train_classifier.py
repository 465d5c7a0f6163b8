"""Train and score a classifier: the loop of every evaluation that trains on augmented images.

A frozen backbone stays in evaluation mode, and heads with several learning rates are trained at
once on its features. Otherwise a copy of the backbone is trained, with batch norm over the global
batch; the given backbone never changes. Results do not depend on the number of processes.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from selfsight import dist, rng
from selfsight.backbones.layer_depths import layer_depths
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError
from selfsight.evals.backbone_with_heads import Classifier, feature_dim
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.compiled_backbone import (
    CompiledBackbone,
    compile_if_it_pays,
    cudnn_tries_kernels,
)
from selfsight.evals.drop_path import DropPath, add_drop_path, set_rows
from selfsight.evals.eval_images import describe_transform
from selfsight.evals.extract_features import (
    AugmentedBatch,
    augmented_batches,
    eval_mode,
    module_device,
)
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import check_has_test_images, hold_out_tenth, select_best
from selfsight.evals.mixup import mix_batch, smooth_labels
from selfsight.evals.prediction_scores import Scores, score_predictions
from selfsight.evals.randaugment import rand_augment
from selfsight.evals.random_erasing import erase
from selfsight.nn.batch_norm import convert_batch_norm
from selfsight.optim import Optim, build_optimizer, set_lr
from selfsight.record_graph import RecordedFunction
from selfsight.terminal.progress import track
from selfsight.views.color import normalize

Optimizers = list[tuple[Optim, torch.optim.Optimizer]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifierEvaluator:
    """Accuracy of a classifier trained on augmented images."""

    data: LabeledData
    training: ClassifierSettings
    seed: int = 0
    compiled: bool | None = None  # whether training compiles the backbone; None: if it pays

    def __post_init__(self) -> None:
        check_has_test_images(self.data)
        smallest = self._smallest_batch
        if self.batch_size < smallest:
            images, batch_size = len(self.data.train_index), self.training.batch_size
            few = f"The number of training images is {images}" if images < batch_size else ""
            pairs = ", because mixup and CutMix work on pairs" if self._unit == 2 else ""
            count = dist.world_size()
            need = f"{count} processes need" if count > 1 else "training needs"
            fewer = " or use fewer processes" if count > 1 else ""
            raise UserError(
                f"{few or f'batch_size is {batch_size}'}, but {need} a batch of {smallest}{pairs}. "
                f"{'Add images' if few else 'Raise batch_size'}{fewer}."
            )

    def __call__(self, backbone: nn.Module) -> Scores:
        """Train on a copy of the backbone and return accuracies on the test images."""
        lrs = self.training.head_lrs or (self.training.head.lr,)
        selected: dict[str, float] = {}
        if len(lrs) > 1:
            lrs, selected = self._select_lr(backbone, lrs)
        model, average = self.fit(backbone, self.data, lrs)
        y, logits = self.test_logits(model)
        guesses, correct = {"accuracy": logits.argmax(dim=1)}, {}
        if average is not None:
            guesses["ema_accuracy"] = self.test_logits(average)[1].argmax(dim=1)
        if self.data.num_classes > 5:
            correct["top5"] = (logits.topk(5).indices == y[:, None]).any(dim=1)
        return score_predictions(y, guesses, correct) | selected

    @property
    def batch_size(self) -> int:
        """The batch size of the settings, but at most the number of training images."""
        return self._batch_size(self.data)

    @property
    def test_transform(self) -> EvalTransform:
        """The transform of test images, with the interpolation of the crops (DeiT, Fast-MoCo)."""
        return replace(self.data.transform, interpolation=self.training.interpolation)

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        settings = asdict(self.training)
        settings |= {"seed": self.seed, "batch_size": self.batch_size}
        settings |= {
            "stored_size": self.data.store_size,
            "transform": describe_transform(self.data.train, self.test_transform),
        }
        if self.batch_size < self.training.batch_size:
            settings["note"] = self._describe_batch()
        return settings

    def _describe_batch(self) -> str:
        """Why the batch is smaller than the settings say, and what follows."""
        training, count = self.training, len(self.data.train_index)
        optims = [optim for optim in (training.head, training.backbone) if optim is not None]
        scales = any(optim.scale != "none" for optim in optims)
        lowered = f"batch_size {training.batch_size} was lowered to {self.batch_size}"
        if training.batch_size > count:
            lowered += f", because there are {count} training images"
        else:
            lowered += ", because mixup and CutMix work on pairs"
        return lowered + ("; learning rates that scale with it are lower too." if scales else ".")

    def _select_lr(
        self, backbone: nn.Module, lrs: tuple[float, ...]
    ) -> tuple[tuple[float], dict[str, float]]:
        """Select the head's learning rate on a held-out tenth of the training images.

        If no class has two images, nothing can be held out, or if the rest is less than a batch:
        then the middle one is used.
        """
        train_index, y = self.data.train_index, self.data.labels()[0]
        split = hold_out_tenth(y, seed=self.seed)
        train = None if split is None else self.data.with_subset(train_index[split.train])
        if split is None or train is None or self._batch_size(train) < self._smallest_batch:
            return (lrs[len(lrs) // 2],), {"lr": lrs[len(lrs) // 2]}
        held_out = replace(
            train,
            transform=self.test_transform,
            test=None,
            split=None,
            subset=train_index[split.test],
        )
        frozen = self.training.backbone is None
        logits: list[Tensor] = []
        for group in [lrs] if frozen else [(lr,) for lr in lrs]:
            model, _ = self.fit(backbone, train, group)
            logits.append(model.logits(held_out.test_features(model.backbone).h))
        best = select_best(torch.cat(logits).detach(), y[split.test].to(logits[0].device))
        lr = lrs[best.number]
        return (lr,), {"lr": lr, "held_out_accuracy": best.accuracy}

    def fit(
        self,
        backbone: nn.Module,
        data: LabeledData,
        lrs: tuple[float, ...],
        start: nn.Linear | None = None,
    ) -> tuple[Classifier, nn.Module | None]:
        """Train a classifier with a head for each learning rate; also return its EMA, if any.

        Each head has the weights of `start`, or random ones.
        """
        training, regularization = self.training, self.training.regularization
        device = data.device or module_device(backbone)
        frozen = training.backbone is None
        if not frozen:
            dtype = next(backbone.parameters()).dtype
            backbone = convert_batch_norm(copy.deepcopy(backbone), None).to(device, dtype)
            backbone.requires_grad_(True)
        decays = regularization.layer_decay is not None and not frozen
        optimizers = self._backbone_optimizers(backbone, layer_depths(backbone) if decays else {})
        drops = [] if frozen else add_drop_path(backbone, regularization.drop_path)
        dim = feature_dim(backbone, data.transform, device, data.autocast)
        heads = nn.ModuleList(self._build_head(dim, data.num_classes, device) for _ in lrs)
        if start is not None:
            for head in heads:
                head.load_state_dict(start.state_dict())
        model = Classifier(backbone, heads, frozen=frozen)
        for lr, head in zip(lrs, heads, strict=True):
            config = replace(training.head, lr=lr)
            optimizer = build_optimizer(config, head.named_parameters(), batch_size=self.batch_size)
            optimizers.append((config, optimizer))
        average = None
        if regularization.ema_decay is not None:
            # Batch-norm statistics are copied, not averaged.
            moving = get_ema_multi_avg_fn(regularization.ema_decay)
            average = AveragedModel(model, multi_avg_fn=moving).eval()
            average.n_averaged += 1  # the first weights count, as in timm
        compiled = self._compile(backbone, data, device)
        compute = self._gradients(model, compiled, optimizers, data)
        # One GPU replays these kernels: it would wait for their launches. DropPath has new tensors
        # in each step, and several processes exchange statistics.
        if device.type == "cuda" and not (frozen or drops or dist.world_size() > 1):
            compute = RecordedFunction(compute, device)
        try_kernels = isinstance(compiled, CompiledBackbone) and not frozen
        with torch.enable_grad(), eval_mode(backbone), cudnn_tries_kernels(try_kernels):
            backbone.train(not frozen)  # `eval_mode` restores the modes at the end
            for step, batch, y in self._batches(data, device):
                self._step(compute, batch, y, optimizers, drops, step, data)
                if average is not None:
                    average.update_parameters(model)
        return model, None if average is None else average.module

    def _compile(self, backbone: nn.Module, data: LabeledData, device: torch.device) -> nn.Module:
        """The backbone for training steps; not part of the classifier, whose names stay."""
        batch_size = self._batch_size(data)
        rows = self._local_rows(batch_size)
        local_batch_size = rows.stop - rows.start
        if self.compiled is not None:
            return CompiledBackbone(backbone, local_batch_size) if self.compiled else backbone
        num_images = self.training.epochs * self._steps_per_epoch(data) * batch_size
        return compile_if_it_pays(
            backbone,
            local_batch_size,
            device=device,
            num_images=num_images // dist.world_size(),
            image_size=data.transform.size,
            trained=self.training.backbone is not None,
        )

    def _gradients(
        self, model: Classifier, compiled: nn.Module, optimizers: Optimizers, data: LabeledData
    ) -> Callable[[Tensor, Tensor], None]:
        """A function of images and targets that computes the gradients of a step."""
        scale = dist.world_size() / self._batch_size(data)

        def compute(x: Float[Tensor, "n c h w"], targets: Float[Tensor, "n k"]) -> None:
            log_p = model(x, self._autocast(x.device), compiled).log_softmax(dim=-1)  # [S, n, K]
            # Summed over heads, which share no trained parameters: each head gets the gradient of
            # its mean over the global batch. Processes may have uneven parts of the batch.
            loss = -(targets * log_p).sum() * scale
            for _, optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()

        return compute

    def _step(
        self,
        compute: Callable[[Tensor, Tensor], None],
        batch: AugmentedBatch,
        y: Tensor,
        optimizers: Optimizers,
        drops: list[DropPath],
        step: int,
        data: LabeledData,
    ) -> None:
        """Regularize the batch and take one optimizer step."""
        settings, seed = self.training.regularization, self.seed
        x = batch.x
        if settings.rand_augment is not None:
            x = rand_augment(
                x,
                batch.index,
                magnitude=settings.rand_augment,
                std=settings.rand_augment_std,
                mean=data.transform.mean,
                seed=seed,
                epoch=batch.epoch,
            )
            x = normalize(x, data.transform.mean, data.transform.std)
        x = erase(x, batch.index, settings.random_erasing, seed=seed, epoch=batch.epoch)
        targets = smooth_labels(y, data.num_classes, settings.label_smoothing)
        x, targets = mix_batch(x, targets, settings, seed=seed, step=step)
        batch_size = self._batch_size(data)
        if drops:
            rows = torch.arange(batch_size, device=x.device)[self._local_rows(batch_size)]
            set_rows(drops, rows, seed=seed, step=step)

        if x.is_cuda:  # convolutions run up to twice as fast in this layout
            x = x.contiguous(memory_format=torch.channels_last)
        compute(x, targets)
        dist.average_gradients(
            p for _, o in optimizers for group in o.param_groups for p in group["params"]
        )
        for config, optimizer in optimizers:
            set_lr(
                optimizer,
                config,
                step=step,
                steps_per_epoch=self._steps_per_epoch(data),
                epochs=self.training.epochs,
                batch_size=self.batch_size,
            )
            optimizer.step()

    def _batches(
        self, data: LabeledData, device: torch.device
    ) -> Iterator[tuple[int, AugmentedBatch, Int64[Tensor, " n"]]]:
        """Yield the step, and the crops and labels of this process's part of each batch."""
        transform, per_epoch = data.transform, self._steps_per_epoch(data)
        if self.training.regularization.rand_augment is not None:  # works on values in [0, 1]
            transform = replace(transform, mean=(0.0,), std=(1.0,))
        total = self.training.epochs * per_epoch
        batches = augmented_batches(
            data.images_to_augment(),
            (self._index(data, step) for step in range(total)),
            self.training.view(transform),
            seed=self.seed,
            device=device,
        )
        assert data.train.labels is not None
        labels = data.train.labels.to(device)
        title = f"training, {self.training.epochs} epochs" if data.progress else None
        for step, batch in enumerate(track(batches, title, total)):
            yield step, batch, labels[batch.index]

    def _index(self, data: LabeledData, step: int) -> list[tuple[int, Int64[Tensor, " _"]]]:
        """This process's images of a step: (epoch, index) for each repeat.

        Repeated augmentation (arXiv:1901.09335): an image occurs `repeats` times in a row in the
        epoch's order, and an epoch has as many steps as without repeats. Each repeat counts as a
        separate epoch for the random crops. A batch is sorted by repeat, so that the partners of
        mixup are different images.
        """
        repeats = self.training.regularization.repeats
        batch_size = self._batch_size(data)
        epoch, number = divmod(step, self._steps_per_epoch(data))
        position = number * batch_size + torch.arange(batch_size)
        repeat = position % repeats
        order = repeat.sort(stable=True).indices
        key = rng.key(self.seed, "order")
        train = data.train_index
        index = train[rng.shuffled(key, len(train), position[order] // repeats, at=epoch)]
        local = self._local_rows(batch_size)
        index, repeat = index[local], repeat[order][local]
        return [(epoch * repeats + r, index[repeat == r]) for r in repeat.unique().tolist()]

    def _batch_size(self, data: LabeledData) -> int:
        return min(self.training.batch_size, len(data.train_index)) // self._unit * self._unit

    @property
    def _unit(self) -> int:
        """Rows that must be on one process: mixup and CutMix work on pairs."""
        settings = self.training.regularization
        return 2 if settings.mixup or settings.cutmix else 1

    @property
    def _smallest_batch(self) -> int:
        """Rows that batch norm and all processes need."""
        return max(2, dist.world_size() * self._unit)

    def _local_rows(self, batch_size: int) -> slice:
        return dist.shard_slice(batch_size, self._unit)

    def _steps_per_epoch(self, data: LabeledData) -> int:
        return len(data.train_index) // self._batch_size(data)

    def _build_head(self, dim: int, num_classes: int, device: torch.device) -> nn.Linear:
        """A linear layer with normal weights that depend only on the seed, and zero biases."""
        head = nn.Linear(dim, num_classes, device=device)
        rows = torch.arange(num_classes)
        weight = rng.normal(rng.key(self.seed, "head"), rows, dim)
        with torch.no_grad():
            head.weight.copy_(self.training.head_init_std * weight)
            head.bias.zero_()
        return head

    def _backbone_optimizers(self, backbone: nn.Module, layers: dict[str, int]) -> Optimizers:
        config = self.training.backbone
        if config is None:
            return []
        groups: dict[int, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in backbone.named_parameters():
            groups.setdefault(layers.get(name, 0), []).append((name, parameter))
        optimizers: Optimizers = []
        decay = self.training.regularization.layer_decay or 1.0
        head_layer = max(groups) + 1
        for layer, parameters in groups.items():
            factor = decay ** (head_layer - layer if layers else 0)
            scaled = replace(config, lr=config.lr * factor)
            optimizer = build_optimizer(scaled, parameters, batch_size=self.batch_size)
            optimizers.append((scaled, optimizer))
        return optimizers

    def _autocast(self, device: torch.device) -> torch.dtype | None:
        if self.data.autocast is not None:
            return self.data.autocast
        return torch.bfloat16 if device.type == "cuda" else None

    @torch.no_grad()
    def test_logits(self, model: Any) -> tuple[Int64[Tensor, " n"], Float[Tensor, "n k"]]:
        """Labels of the test images and the logits of the first head."""
        test = replace(self.data, transform=self.test_transform).test_features(model.backbone)
        assert test.y is not None
        return test.y, model.logits(test.h)[0]
