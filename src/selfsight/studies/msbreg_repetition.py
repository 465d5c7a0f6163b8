"""MSBReg: centroids of four views against two independent pairs."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

RECIPE = "msbreg.imagenet100_r18_k4_320ep"
NO_LOSSES = {"method.singular_weight": 0.0, "method.brownian_weight": 0.0}


def _cifar10(k: int, centroid: str, *, like: str = "") -> Arm:
    """50 epochs; the learning rate is proportional to the views, the same for both losses."""
    return cifar10_arm(
        f"{'centroid' if centroid == 'leave_one_out' else centroid}_k{k}",
        "msbreg.cifar10_r18_100ep",
        {
            "method.num_views": k,
            "method.centroid": centroid,
            "optim.lr": 0.03 * k,
            "optim.weight_decay": 5e-4,
            **NO_LOSSES,
        },
        like=like,
        line="repetition" if centroid == "repeat" else "centroid",
        x=k,
    )


STUDY = Study(
    name="msbreg_repetition",
    paper="MSBReg, supplement of arXiv:2207.03552, section 4 and table 5",
    claim="Four views help by their centroids, not by repeating the batch.",
    judged_by="Linear top-1 of centroids against two independent pairs of BYOL.",
    arms=(
        Arm(
            name="repeat",
            recipe=RECIPE,
            settings={"method.centroid": "repeat", "epochs": 300, **NO_LOSSES},
            source=(
                "none published; 78.2 % with centroids of four views (MSBReg, supplement, table 5)"
            ),
            scale="imagenet100",
        ),
        Arm(
            name="centroid",
            recipe=RECIPE,
            settings={"epochs": 300, **NO_LOSSES},
            published=78.2,
            source="MSBReg, supplement, table 5",
            scale="imagenet100",
        ),
        _cifar10(4, "leave_one_out", like="centroid"),
        _cifar10(4, "repeat", like="repeat"),
        _cifar10(2, "leave_one_out"),  # of two views both are BYOL
        _cifar10(8, "leave_one_out"),
        _cifar10(8, "repeat"),
    ),
    varied="views K",
    claims=tuple(
        Claim(
            text=f"At {k} views, centroids are better than independent pairs of views.",
            better=f"cifar10_centroid_k{k}",
            than=f"cifar10_repeat_k{k}",
        )
        for k in (4, 8)
    ),
)
