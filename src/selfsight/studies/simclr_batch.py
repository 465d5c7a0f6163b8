"""SimCLR: batch size at 100 epochs."""

from selfsight.studies.study_types import Arm, Study

PLOTTED = "plotted, not printed (SimCLR, arXiv:2002.05709, figure 9)"
PUBLISHED = {
    256: (57.5, "SimCLR, as quoted by EqCo, arXiv:2010.01929, section 1"),
    4096: (64.5, "google-research/simclr, README"),
}

STUDY = Study(
    name="simclr_batch",
    paper="SimCLR, arXiv:2002.05709, figure 9; EqCo, arXiv:2010.01929, section 1",
    claim="SimCLR needs large batches: accuracy rises from 256 to 8192 (57.5 to above 64 %).",
    judged_by="Linear top-1 over the batch sizes.",
    arms=tuple(
        Arm(
            name=f"batch{batch_size}",
            recipe="simclr.imagenet_r50_100ep",
            settings={"batch_size": batch_size},
            published=PUBLISHED[batch_size][0] if batch_size in PUBLISHED else None,
            source=PUBLISHED[batch_size][1] if batch_size in PUBLISHED else PLOTTED,
        )
        for batch_size in (256, 512, 1024, 2048, 4096, 8192)
    ),
)
