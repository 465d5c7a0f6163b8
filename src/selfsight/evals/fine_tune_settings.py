"""Published settings of end-to-end fine-tuning: MoCo v3 with DeiT's, on five data sets."""

from dataclasses import replace
from typing import Any

from selfsight.evals.classifier_settings import ClassifierSettings, Regularization
from selfsight.optim import Optim, Schedule

DEIT = Regularization(
    rand_augment=9.0,
    rand_augment_std=0.5,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    random_erasing=0.25,
    drop_path=0.1,
    ema_decay=0.99996,
    repeats=3,
)


def adamw(lr: float, *, weight_decay: float, warmup_epochs: int, batch_size: int) -> Optim:
    """DeiT's AdamW: lr x batch / 512, warm-up from 1e-6, cosine to 1e-5, no decay of biases."""
    peak = lr * batch_size / 512
    return Optim(
        name="adamw",
        lr=lr / 2,  # scale="linear" is relative to a batch of 256
        scale="linear",
        weight_decay=weight_decay,
        exclude_1d=True,
        schedule=Schedule(
            warmup_epochs=warmup_epochs,
            warmup_start=1e-6 / peak,
            end=1e-5 / peak,
            per_epoch=True,
            shifted=False,
        ),
    )


def end_to_end(
    source: str, optim: Optim, regularization: Regularization, *, epochs: int
) -> ClassifierSettings:
    """Head and backbone with one learning rate, bicubic crops, batch size 1024."""
    return ClassifierSettings(
        source=source,
        epochs=epochs,
        batch_size=1024,
        head=optim,
        backbone=optim,
        interpolation="bicubic",
        head_init_std=0.02,
        regularization=regularization,
    )


def transfer(weight_decay: float, *, name: str, **changes: Any) -> ClassifierSettings:
    """100 epochs at 3e-4 x batch / 512, without repeats; `changes` differ from DeiT's settings."""
    regularization = replace(DEIT, repeats=1, **({"random_erasing": 0.0} | changes))
    return end_to_end(
        f"MoCo v3 (arXiv:2104.02057), transfer to {name}: facebookresearch/moco-v3, transfer/",
        adamw(3e-4, weight_decay=weight_decay, warmup_epochs=3, batch_size=1024),
        regularization,
        epochs=100,
    )


VIT_B = end_to_end(
    "MoCo v3 (arXiv:2104.02057), ViT-B on ImageNet, with DeiT's settings (arXiv:2012.12877)",
    adamw(5e-4, weight_decay=0.05, warmup_epochs=5, batch_size=1024),
    DEIT,
    epochs=150,
)

PUBLISHED: dict[str, ClassifierSettings] = {
    "mocov3_vit": VIT_B,
    "cifar10": transfer(0.1, name="CIFAR-10"),
    "cifar100": transfer(0.1, name="CIFAR-100", mixup=0.5),
    "flowers102": transfer(0.3, name="Flowers-102", mixup=0.0, cutmix=0.0, random_erasing=0.25),
    "pets": transfer(0.1, name="Oxford-IIIT Pets", cutmix=0.0, drop_path=0.0),
}
