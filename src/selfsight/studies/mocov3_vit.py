"""MoCo v3: vision transformers of all sizes."""

from selfsight.studies.study_types import Arm, Study

TABLE_4, FIGURE_8 = "MoCo v3, table 4", "MoCo v3, figure 8"

# Network, epochs, linear top-1 and its source.
NETWORKS = [
    ("vit_s16", 300, 72.5, f"{TABLE_4}; 73.2 % in moco-v3, README"),
    ("vit_s16", 600, 73.4, TABLE_4),
    ("vit_b16", 300, 76.5, f"{TABLE_4}; 76.7 % in moco-v3, README"),
    ("vit_b16", 600, 76.7, TABLE_4),
    ("vit_l16", 300, 77.6, FIGURE_8),
    ("vit_h14", 300, 78.1, FIGURE_8),
    ("vit_bn_s16", 600, 74.1, FIGURE_8),
    ("vit_bn_b16", 600, 77.5, FIGURE_8),
    ("vit_bn_l16", 300, 78.6, FIGURE_8),
    ("vit_bn_h14", 300, 79.1, FIGURE_8),
    ("vit_bn_s7", 600, 77.0, FIGURE_8),
    ("vit_bn_b7", 600, 79.5, FIGURE_8),
    ("vit_bn_l7", 300, 81.0, FIGURE_8),
]

STUDY = Study(
    name="mocov3_vit",
    paper="MoCo v3, arXiv:2104.02057, table 4 and figure 8",
    claim=(
        "Accuracy grows with the size of the network, with batch norm in place of layer norm "
        "in its MLP blocks, and with smaller patches."
    ),
    judged_by="The order of linear top-1 over sizes, norms and patch sizes.",
    arms=tuple(
        Arm(
            name=f"{network}_{epochs}ep",
            recipe="mocov3.imagenet_vit_b16_300ep",
            settings={"backbone.name": network, "epochs": epochs},
            published=top1,
            source=source,
        )
        for network, epochs, top1, source in NETWORKS
    ),
)
