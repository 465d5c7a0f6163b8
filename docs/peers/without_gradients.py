"""What does a forward pass in evaluation mode, under torch.no_grad, change?"""

import lightly.loss
import torch
from lightly.models.modules import NNMemoryBankModule
from solo.methods import NNCLR, MoCoV2Plus
from stable_pretraining import methods as stable
from tests.methods.utils import DATA_KWARGS, gen_base_kwargs  # of the solo-learn package

torch.manual_seed(0)
x = [torch.randn(4, 3, 32, 32) for _ in range(2)]
z = [torch.randn(4, 8) for _ in range(2)]
head = dict(proj_output_dim=8, proj_hidden_dim=16, temperature=0.2, queue_size=16)
base = gen_base_kwargs(cifar=True, batch_size=4) | DATA_KWARGS | {"disable_knn_eval": True}
momentum = gen_base_kwargs(cifar=True, momentum=True) | DATA_KWARGS
momentum |= {"disable_knn_eval": True, "momentum_classifier": False}
encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())
CASES = {
    "lightly NTXentLoss, memory bank": (lightly.loss.NTXentLoss(0.2, (16, 8)), z),
    "lightly NNMemoryBankModule": (NNMemoryBankModule((16, 8)), z[:1]),
    "solo-learn MoCoV2Plus": (MoCoV2Plus(**momentum, **head), x[:1]),
    "solo-learn NNCLR": (NNCLR(**base, **head, pred_hidden_dim=16), x[:1]),
    "stable-pretraining MoCov2": (stable.MoCov2(encoder, (16, 8), 16), x),
    "stable-pretraining MoCov2, one view": (stable.MoCov2(encoder, (16, 8), 16), x[:1]),
    "stable-pretraining NNCLR": (stable.NNCLR(encoder, (16, 8), 16, 16), x),
    "stable-pretraining NNCLR, one view": (stable.NNCLR(encoder, (16, 8), 16, 16), x[:1]),
}
for name, (module, inputs) in CASES.items():
    module.eval()
    tensors = dict(module.named_buffers())
    before = {key: value.clone() for key, value in tensors.items()}
    with torch.no_grad():
        module(*inputs)
    changed = [k for k, v in module.named_buffers() if not torch.equal(v, before[k])]
    print(f"{name:40} changes {', '.join(changed) or 'nothing'}")
