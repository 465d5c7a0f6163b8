"""MoCo v3: batch size of ViT-B/16."""

from selfsight.studies.study_types import Arm, Study

STUDY = Study(
    name="mocov3_batch",
    paper="MoCo v3, arXiv:2104.02057, figure 1",
    claim="Large batches make ViT training unstable: curves dip and accuracy falls.",
    judged_by="Linear top-1 of the largest batch against the best; dips of `online_knn`, counted.",
    arms=tuple(
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
        )
        for batch_size, top1 in {1024: 71.5, 2048: 72.6, 4096: 72.2, 6144: 69.7}.items()
    ),
)
