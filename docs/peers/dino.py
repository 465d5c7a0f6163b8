"""DINO against facebookresearch/dino@7c446df5b9f4 main_dino.py: 2 global and 3 local crops.

dino.npz has the inputs, loss, gradient and center of its DINOLoss on one process (gloo, float64).
"""

from pathlib import Path

import numpy as np
import torch
from lightly.loss import DINOLoss
from published import compare
from solo.losses import DINOLoss as SoloLoss
from stable_pretraining.losses import DINOv1Loss

numbers = np.load(Path(__file__).with_name("dino.npz"))
r = {key: torch.from_numpy(numbers[key]).double() for key in numbers}
student, teacher = r["student"], r["teacher"]
for case in ("zero_e0", "c0_e7"):  # a center of zero, and another
    center = r["center0"] if case == "c0_e7" else torch.zeros(1, 12).double()
    temperature = r[f"teacher_temp_{case}"].item()
    expected = r[f"loss_{case}"], r[f"grad_student_{case}"]

    lightly = DINOLoss(12, teacher_temp=temperature).double()
    lightly.center = center[None].clone()
    compare(
        f"lightly, {case}",
        lambda s, f=lightly: f(list(teacher.chunk(2)), list(s.chunk(5))),
        [student],
        *expected,
    )
    solo = SoloLoss(12, temperature, temperature, 1, 1, num_large_crops=5).double()
    solo.center = center.clone()
    compare(f"solo-learn, {case}", lambda s, f=solo: f(s, teacher), [student], *expected)

    stable = DINOv1Loss()
    stable.center = center.clone() if case == "c0_e7" else None
    views = teacher.unflatten(0, (2, -1))
    probabilities = stable.softmax_center_teacher(views, temperature)
    compare(
        f"stable-pretraining, {case}",
        lambda s, f=stable, p=probabilities: f(s.unflatten(0, (5, -1)), p.float()).double(),
        [student],
        *expected,
    )
    stable.update_center(views)
    stable.apply_center_update()
    for name, loss in (("lightly", lightly), ("solo-learn", solo), ("stable-pretraining", stable)):
        apart = (loss.center.flatten() - r[f"center_after_{case}"].flatten()).abs().max()
        print(f"  center after the step, {name}: {apart:.0e} apart")
