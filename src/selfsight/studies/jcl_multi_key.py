"""JCL against the plain loss over the same number of keys, and against MoCo v2."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "JCL, arXiv:2009.14776"
BELOW = "none printed; below JCL at equal memory (JCL, supplement, section 2)"

STUDY = Study(
    name="jcl_multi_key",
    paper=f"{PAPER}, table 1 and figure 3; supplement, sections 2 and 5",
    claim=(
        "JCL beats MoCo v2, and the plain loss over several keys at equal memory; its features "
        "vary less over the views of an image."
    ),
    judged_by=(
        "Linear top-1 of JCL against MoCo v2 and against the plain loss at equal keys "
        "(jcl_ablations has JCL at 2 and 9 keys); the variance of features over views."
    ),
    arms=(
        Arm(
            name="imagenet_jcl",
            recipe="jcl.imagenet_r50_200ep",
            published=68.7,
            source=f"{PAPER}, table 1",
        ),
        Arm(
            name="imagenet_multi_key",
            recipe="jcl.imagenet_r50_200ep",
            settings={"method.loss": "multi_key"},
            source=BELOW,
        ),
        Arm(
            name="imagenet_moco_v2",
            recipe="moco.imagenet_v2_200ep",
            published=67.5,
            source="facebookresearch/moco, README",
        ),
        Arm(
            name="moco_v2",
            recipe="moco.imagenet100_r18_100ep",
            source="none printed; the settings are those of JCL's supplement (sections 4 and 5)",
            scale="imagenet100",
        ),
        # At the memory of M keys: a batch M times larger, with the learning rate of linear scaling.
        *(
            Arm(
                name=f"moco_v2_batch{128 * m}",
                recipe="moco.imagenet100_r18_100ep",
                settings={"batch_size": 128 * m, "optim.lr": 0.1 * m},
                source="none printed; the memory of M keys (JCL, supplement, section 2)",
                scale="imagenet100",
            )
            for m in (2, 5, 9)
        ),
        Arm(
            name="m5",
            recipe="jcl.imagenet100_r18_100ep",
            source=f"plotted, not printed ({PAPER}, figure 2)",
            scale="imagenet100",
        ),
        *(
            Arm(
                name=f"m{m}_multi_key",
                recipe="jcl.imagenet100_r18_100ep",
                settings={
                    "method.num_keys": m,
                    "method.loss": "multi_key",
                },
                source=BELOW,
                scale="imagenet100",
            )
            for m in (2, 5, 9)
        ),
        # 50 epochs; queue, temperature, momentum, batch norm and views are the same in all.
        *(
            cifar10_arm(
                name,
                f"{name.split('_')[0]}.cifar10_r18_200ep",
                {"optim.schedule.warmup_epochs": 5.0} | settings,
                like=like,
            )
            for name, like, settings in (
                ("moco_v2", "imagenet_moco_v2", {}),
                ("jcl", "imagenet_jcl", {}),
                ("jcl_multi_key", "imagenet_multi_key", {"method.loss": "multi_key"}),
                ("jcl_lambda4", "", {"method.strength": 4.0}),
                ("jcl_lambda8", "", {"method.strength": 8.0}),
            )
        ),
    ),
    claims=(
        Claim(text="JCL beats MoCo v2.", better="cifar10_jcl", than="cifar10_moco_v2"),
        Claim(
            text="JCL beats the plain loss over as many keys.",
            better="cifar10_jcl",
            than="cifar10_jcl_multi_key",
        ),
        # At lambda 2 both have nearly the same gradient; the supplement's is 4.
        *(
            Claim(
                text=f"With lambda {strength} JCL beats the plain loss over as many keys.",
                better=f"cifar10_jcl_lambda{strength}",
                than="cifar10_jcl_multi_key",
            )
            for strength in (4, 8)
        ),
        *(
            Claim(
                text=f"JCL's features vary less over the views of an image than those of {name} "
                "(the difference is in percent of the largest variance).",
                better="cifar10_jcl",
                than=than,
                measure="view_variance",
            )
            for name, than in (
                ("MoCo v2", "cifar10_moco_v2"),
                ("the plain loss over as many keys", "cifar10_jcl_multi_key"),
            )
        ),
    ),
)
