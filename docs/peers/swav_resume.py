"""solo-learn's SwAV with a queue: train one step, then resume from its checkpoint by Lightning."""

import tempfile
from pathlib import Path

import pytorch_lightning as pl
import torch
from solo.methods import SwAV
from tests.methods.utils import DATA_KWARGS, gen_base_kwargs  # of the solo-learn package

torch.manual_seed(0)
settings = gen_base_kwargs(cifar=True, batch_size=4) | DATA_KWARGS | {"disable_knn_eval": True}
settings |= dict(
    lars=False, scheduler="none", proj_output_dim=8, proj_hidden_dim=16, temperature=0.2
)
settings |= dict(num_prototypes=5, sk_iters=3, sk_epsilon=0.05, freeze_prototypes_epochs=0)
images = [torch.randn(4, 3, 32, 32) for _ in range(2)]
batch = [torch.arange(4), images, torch.zeros(4, dtype=torch.long)]
batches = torch.utils.data.DataLoader([batch], batch_size=None)


def fit(queue_size, epochs, checkpoint=None):
    """Train with pytorch_lightning; a batch is an epoch."""
    model = SwAV(**settings, queue_size=queue_size, epoch_queue_starts=0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches, ckpt_path=checkpoint)
    return trainer


checkpoint = Path(tempfile.mkdtemp()) / "swav.ckpt"
for queue_size in (0, 16):
    fit(queue_size, 1).save_checkpoint(checkpoint)
    try:
        fit(queue_size, 2, checkpoint)
        print(f"queue_size={queue_size}: resumed")
    except RuntimeError as error:
        print(f"queue_size={queue_size}: {' '.join(str(error).split())}")
