"""MoCo v3: batch size of ViT-B/16."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

STUDY = Study(
    name="mocov3_batch",
    paper="MoCo v3, arXiv:2104.02057, figure 1",
    claim="Large batches make ViT training unstable: curves dip and accuracy falls.",
    judged_by="Linear top-1 of the largest batch against the best; dips of `online_knn`, counted.",
    varied="batch size",
    arms=(
        *(
            Arm(
                name=f"batch{batch_size}",
                recipe="mocov3.imagenet_vit_b16_300ep",
                settings={
                    "batch_size": batch_size,
                    "epochs": 100,
                    "optim.lr": 1e-4,
                    "backbone.freeze_patch": False,
                },
                published=top1,
                source="MoCo v3, figure 1",
                line="ViT",
                x=float(batch_size),
            )
            for batch_size, top1 in {1024: 71.5, 2048: 72.6, 4096: 72.2, 6144: 69.7}.items()
        ),
        # A small ViT, 50 epochs; as in the paper the learning rate is proportional to the batch.
        *(
            cifar10_arm(
                f"batch{batch_size}",
                "mocov3.cifar10_vit_t4_200ep",
                {
                    "batch_size": batch_size,
                    "optim.schedule.warmup_epochs": 10.0,
                    "backbone.freeze_patch": False,
                },
                like="" if batch_size == 512 else f"batch{batch_size}",
                line="ViT",
                x=batch_size,
            )
            for batch_size in (512, 4096, 1024, 2048)
        ),
    ),
    claims=(
        Claim(
            text="A small ViT is better at batch 512 than at batch 4096.",
            better="cifar10_batch512",
            than="cifar10_batch4096",
        ),
        Claim(
            text=(
                "A small ViT is steadier at batch 512 than at batch 4096: fewer dips "
                "(the difference is in dips)."
            ),
            better="cifar10_batch512",
            than="cifar10_batch4096",
            measure="dips",
        ),
    ),
)
