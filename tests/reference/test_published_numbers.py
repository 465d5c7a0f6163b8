"""Our losses, schedules and updates against the numbers that the authors' own code gives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from selfsight.losses import (
    barlow_twins,
    info_nce,
    jcl,
    nt_xent,
    queue_info_nce,
    regression,
    vicreg,
)
from selfsight.losses.clustering import centered_codes, swapped_prediction
from selfsight.methods import METHODS
from selfsight.methods.base import Moment, Step
from selfsight.methods.dino import DINOConfig
from selfsight.methods.moco import MoCoConfig
from selfsight.nn import Backbone
from selfsight.nn.heads import DistillationHead
from selfsight.optim import LARS, Optim, Schedule, build_optimizer, cosine, set_lr

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
FLOAT32 = {"rtol": 2e-5, "atol": 2e-6}


def numbers(name, dtype=torch.float64):
    with np.load(Path(__file__).parent / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(np.asarray(file[key])) for key in file}
    return {key: a.to(dtype) if a.is_floating_point() else a for key, a in arrays.items()}


def leaves(file, *names):
    return [file[name].requires_grad_() for name in names]


def check(loss, expected, inputs, gradients, tolerance=None):
    """The loss and its gradients, to the tolerance of the inputs' precision."""
    tolerance = tolerance or (TIGHT if loss.dtype == torch.float64 else FLOAT32)
    torch.testing.assert_close(loss, expected, **tolerance)
    for mine, theirs in zip(torch.autograd.grad(loss, inputs), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


PAPERS = {
    "barlow_twins": dict(dim=8192, hidden_dim=8192, num_layers=3, redundancy=0.0051),
    "byol": dict(dim=256, hidden_dim=4096, momentum=0.99, momentum_end=1.0),
    "dino": dict(out_dim=65536, dim=256, hidden_dim=2048, num_layers=3, head_norm=False)
    | dict(num_small=8, student_temperature=0.1, teacher_temperature=0.04, center_momentum=0.9)
    | dict(momentum=0.996, momentum_end=1.0, freeze_epochs=1),
    "fast_moco": dict(dim=2048, predictor_dim=512, temperature=1.0, momentum=0.99),
    "instdisc": dict(dim=128, loss="nce", num_noise=4096, temperature=0.07, memory_momentum=0.5)
    | dict(proximal_lambda=0.0),
    "jcl": dict(dim=128, num_keys=5, strength=4.0, ramp=True, temperature=0.2, momentum=0.999)
    | dict(queue_size=65536, bn="shuffle"),
    "lejepa": dict(num_large=2, num_small=8, sigreg_weight=0.05, num_slices=1024, num_knots=17)
    | dict(last_knot=3.0),
    "moco": dict(dim=128, mlp=True, symmetric=False, temperature=0.2, momentum=0.999)
    | dict(queue_size=65536, bn="shuffle", bn_group=32),
    "mocov3": dict(dim=256, hidden_dim=4096, head="resnet", temperature=1.0, momentum=0.99)
    | dict(momentum_end=1.0),
    "msbreg": dict(dim=128, hidden_dim=512, singular_weight=0.004, brownian_weight=0.5)
    | dict(momentum=0.99),
    "nnclr": dict(dim=256, hidden_dim=2048, predictor_dim=4096, queue_size=98304, temperature=0.1),
    "simclr": dict(dim=128, hidden_dim=2048, num_layers=2, temperature=0.1),
    "simo": dict(dim=128, num_negatives=256, alpha=256.0, temperature=0.2, momentum=0.999)
    | dict(symmetric=False, bn="sync"),
    "simsiam": dict(dim=2048, hidden_dim=None, predictor_dim=512, num_layers=3, last_norm="none"),
    "swav": dict(dim=128, hidden_dim=2048, num_prototypes=3000, num_small=6, temperature=0.1)
    | dict(queue_epoch=15, freeze_steps=313),
    "vicreg": dict(dim=8192, hidden_dim=8192, num_layers=3, invariance=25.0, variance=25.0)
    | dict(covariance=1.0),
}


@pytest.mark.parametrize("name", PAPERS)
def test_defaults_are_the_settings_of_the_papers_imagenet_runs(name):
    """Recipes leave out what is the default, so another default would change a published run."""
    config, published = METHODS[name](), PAPERS[name]
    assert {key: getattr(config, key) for key in published} == published


in_both_precisions = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


@pytest.mark.parametrize("tag", ["0p2", "1p0"])
@in_both_precisions
def test_mocov3(tag, dtype):
    file, t = numbers("mocov3_loss", dtype), float(tag.replace("p", "."))
    q1, q2 = leaves(file, "q1", "q2")
    loss = info_nce(q1, file["k2"], temperature=t) + info_nce(q2, file["k1"], temperature=t)
    gradients = file[f"grad_q1_T{tag}"], file[f"grad_q2_T{tag}"]
    check(2 * t * loss, file[f"loss_T{tag}"], (q1, q2), gradients)


@pytest.mark.parametrize("tag", ["0p07", "0p2"])
@in_both_precisions
def test_moco(tag, dtype):
    file, t = numbers("moco_infonce", dtype), float(tag.replace("p", "."))
    (q,) = leaves(file, "q")
    loss = queue_info_nce(q, file["k"], file["queue"].T, temperature=t)
    check(loss, file[f"loss_T{tag}"], (q,), (file[f"grad_q_T{tag}"],))


@pytest.mark.parametrize("t", [0.1, 0.2])
def test_moco_v2plus_with_a_queue_for_each_direction(t):
    file = numbers("moco_v2plus")
    q1, q2 = leaves(file, "q1", "q2")
    loss12 = queue_info_nce(q1, file["k2"], file["queue"][1].T, temperature=t)
    loss21 = queue_info_nce(q2, file["k1"], file["queue"][0].T, temperature=t)
    gradients = file[f"grad_q1_T{t}"], file[f"grad_q2_T{t}"]
    # Their code normalizes before, so their gradient is not projected to the sphere.
    radial = [
        g - (g * q).sum(1, keepdim=True) * q for g, q in zip(gradients, (q1, q2), strict=True)
    ]
    check((loss12 + loss21) / 2, file[f"loss_T{t}"], (q1, q2), radial)


class PartOfInput(Backbone):
    """A backbone whose output is a part of the image, from a channel on."""

    dim, start = 8, 0

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x[:, self.start : self.start + self.dim, 0, 0]


@pytest.mark.parametrize(("form", "factor"), [("asym", 1), ("sym", 2)])
def test_moco_v2plus_is_half_the_sum_of_the_official_demo_and_pushes_the_same_keys(form, factor):
    file = numbers("moco_v2plus")
    config = MoCoConfig(symmetric=form == "sym", dim=8, queue_size=24, temperature=0.1, bn="sync")
    method = config.build(PartOfInput())
    method.student.projector = method.teacher.net.projector = torch.nn.Identity()
    method.teacher.net.backbone.start = 8
    method.queue.keys = file["demo_queue"].T.clone()
    views = [torch.cat([file[f"demo_q{v}_raw"], file[f"demo_k{v}_raw"]], 1) for v in (1, 2)]
    views = [view[:, :, None, None].requires_grad_() for view in views]
    step = method(views, Moment())
    queries = (1, 2) if form == "sym" else (1,)
    gradients = torch.autograd.grad(factor * step.loss, views[: len(queries)])
    torch.testing.assert_close(factor * step.loss, file[f"demo_loss_{form}_T0.1"], **TIGHT)
    for v, gradient in zip(queries, gradients, strict=True):
        theirs = file[f"demo_grad_q{v}_{form}_T0.1"]
        torch.testing.assert_close(gradient[:, :8, 0, 0], theirs, **TIGHT)
    method.after_step(Moment(), step)
    torch.testing.assert_close(method.queue.keys.T, file[f"demo_queue_after_{form}"], **TIGHT)
    assert method.queue.head == file[f"demo_ptr_after_{form}"]


@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_simclr_is_twice_the_mean_over_anchors(t):
    file = numbers("simclr_ntxent_tf")
    (hidden,) = leaves(file, "hidden")
    loss = 2 * nt_xent(*hidden.chunk(2), temperature=t)
    check(loss, file[f"loss_T{t}"], (hidden,), (file[f"grad_hidden_T{t}"],), FLOAT32)


@in_both_precisions
def test_byol(dtype):
    file = numbers("byol", dtype)
    p1, p2 = leaves(file, "p1", "p2")
    loss = regression(p1, file["z2"]) + regression(p2, file["z1"])
    check(loss, file["loss"], (p1, p2), (file["grad_p1"], file["grad_p2"]))


@pytest.mark.parametrize("k", [3, 7])
@pytest.mark.parametrize("t", [0.2, 0.07])
@pytest.mark.parametrize("alpha", [None, "k", 256, 65536])
@in_both_precisions
def test_simo(k, t, alpha, dtype):
    file = numbers("eqco_simo", dtype)
    (q,) = leaves(file, "z_i")
    number = k if alpha in (None, "k") else alpha
    tag = f"{'head' if alpha is None else 'eqco'}_K{k}_T{t}_a{number}"
    loss = info_nce(
        q,
        file["z_j"],
        temperature=t,
        negatives=file[f"neg_perm_K{k}"],
        alpha=None if alpha is None else float(number),
    )
    check(loss, file[f"loss_{tag}"], (q,), (file[f"grad_zi_{tag}"],))


@pytest.mark.parametrize(("t", "strength"), [(0.2, 4.0), (0.2, 2.0), (0.07, 0.25), (0.2, 0.0)])
@in_both_precisions
def test_jcl(t, strength, dtype):
    file, tag = numbers("jcl", dtype), f"T{t}_lam{strength}"
    (q,) = leaves(file, "q")
    keys = file["keys_crop_major"].unflatten(0, (int(file["M"]), -1))
    loss = jcl(q, keys, file["queue"].T, temperature=t, strength=strength)
    check(loss, file[f"loss_{tag}"], (q,), (file[f"grad_q_{tag}"],))


@pytest.mark.parametrize("t", [1.0, 0.2])
@in_both_precisions
def test_fast_moco(t, dtype):
    file = numbers("fastmoco_loss", dtype)
    p1, p2 = leaves(file, "p1", "p2")
    blocks1, blocks2 = p1.unflatten(0, (6, -1)), p2.unflatten(0, (6, -1))
    first = info_nce(blocks1, file["z2"], temperature=t)
    second = info_nce(blocks2, file["z1"], temperature=t)
    gradients = file[f"grad_p1_T{t}"], file[f"grad_p2_T{t}"]
    check((first + second) / 2, file[f"loss_T{t}"], (p1, p2), gradients)


@pytest.mark.parametrize("redundancy", [0.0051, 0.1])
@in_both_precisions
def test_barlow_twins(redundancy, dtype):
    file = numbers("barlow", dtype)
    z = leaves(file, "z1", "z2")
    gradients = file[f"grad_z1_lam{redundancy}"], file[f"grad_z2_lam{redundancy}"]
    check(barlow_twins(*z, redundancy=redundancy), file[f"loss_lam{redundancy}"], z, gradients)


@pytest.mark.parametrize(
    ("term", "weights"),
    [
        ("full", (25.0, 25.0, 1.0)),
        ("sim", (1.0, 0.0, 0.0)),
        ("std", (0.0, 1.0, 0.0)),
        ("cov", (0.0, 0.0, 1.0)),
    ],
)
@in_both_precisions
def test_vicreg(term, weights, dtype):
    file = numbers("vicreg", dtype)
    z = leaves(file, "z1", "z2")
    settings = dict(zip(("invariance", "variance", "covariance"), weights, strict=True))
    gradients = file[f"grad_z1_{term}"], file[f"grad_z2_{term}"]
    check(vicreg(*z, **settings), file[f"loss_{term}"], z, gradients)


@pytest.mark.parametrize("run", ["r50_100", "r50_300", "r50_1000", "vit_300"])
def test_mocov3_rate_and_momentum(run):
    file = numbers("mocov3_schedules")
    peak, warmup, epochs, base = file[f"{run}_hp"].tolist()
    schedule = Schedule(warmup_epochs=warmup)
    for epoch, rate, momentum in zip(
        file["epoch"].tolist(), file[f"{run}_lr"].tolist(), file[f"{run}_m"].tolist(), strict=True
    ):
        if epoch <= epochs:
            assert schedule.lr(epoch, epochs, peak) == pytest.approx(rate, rel=1e-9, abs=1e-15)
            assert cosine(epoch / epochs, base, 1.0) == pytest.approx(momentum, rel=1e-9)


@pytest.mark.parametrize("run", ["e100", "e300", "e1000"])
def test_byol_rate_and_momentum(run):
    file = numbers("byol")
    total, warmup, lr, batch, base = file[f"{run}_hp"].tolist()
    schedule = Schedule(warmup_epochs=warmup)  # all lengths in steps
    for step, rate, momentum in zip(
        file["steps"].tolist(), file[f"{run}_lr"].tolist(), file[f"{run}_tau"].tolist(), strict=True
    ):
        mine = schedule.lr(float(step), total, lr * batch / 256)
        assert mine == pytest.approx(rate, rel=2e-5, abs=2e-6)
        assert cosine(step / total, base, 1.0) == pytest.approx(momentum, rel=1e-9)


def test_fast_moco_rate_of_network_and_predictor():
    # The authors count from 1 and give the last step the last rate, so a length is one less.
    file = numbers("fastmoco_lr")
    total, warmup, first, base, _ = file["hp"].tolist()
    schedule = Schedule(warmup_epochs=warmup - 1, warmup_start=first / base)
    config = Optim(lr=base, scale="none", predictor_lr="constant", schedule=schedule)
    weights = [(name, torch.nn.Parameter(torch.ones(2, 2))) for name in ("a", "predictor.a")]
    optimizer = build_optimizer(config, weights, batch_size=512)
    for iteration, rates in zip(
        file["iters"].tolist(), file["lr_backbone_head"].tolist(), strict=True
    ):
        step = iteration - 1
        set_lr(optimizer, config, step=step, steps_per_epoch=1, epochs=total - 1, batch_size=512)
        mine = [group["lr"] for group in optimizer.param_groups]
        assert mine == pytest.approx(rates, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("run", "decay", "exclude"),
    [
        ("mocov3_wd1e-6", 1e-6, True),
        ("mocov3_wd0.1", 0.1, True),
        ("barlow_filter_wd0.1", 0.1, True),
        ("barlow_nofilter_wd0.1", 0.1, False),
    ],
)
def test_lars(run, decay, exclude):
    file, names = numbers("lars"), ("w2", "conv", "bias", "gamma", "zero")
    params = {name: torch.nn.Parameter(file[f"p0_{name}"].clone()) for name in names}
    config = Optim(name="lars", scale="none", weight_decay=decay, exclude_1d=exclude)
    optimizer = build_optimizer(config, params.items(), batch_size=256)
    assert isinstance(optimizer, LARS)
    for step, lr in enumerate(file["lrs"].tolist()):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, param in params.items():
            param.grad = file[f"g{step}_{name}"].clone()
        optimizer.step()
        for name, param in params.items():
            expected = file[f"{run}_step{step + 1}_{name}"]
            torch.testing.assert_close(param.detach(), expected, **TIGHT)


@pytest.mark.parametrize("case", ["zero_e0", "c0_e0", "c0_e2", "c0_e7"])
@in_both_precisions
def test_dino(case, dtype):
    file = numbers("dino", dtype)
    (student,) = leaves(file, "student")
    teacher = file["teacher"].unflatten(0, (2, -1))
    center = torch.zeros(12, dtype=dtype) if case == "zero_e0" else file["center0"][0]
    rise = DINOConfig(teacher_temperature=0.07, temperature_epochs=4)
    temperature = rise.temperature_at(file[f"epoch_{case}"].double())
    torch.testing.assert_close(
        float(temperature), file[f"teacher_temp_{case}"].item(), rtol=1e-6, atol=0
    )
    codes = centered_codes(teacher, center, temperature=temperature)
    loss = swapped_prediction(student.unflatten(0, (5, -1)), codes, temperature=0.1)
    check(loss, file[f"loss_{case}"], [student], [file[f"grad_student_{case}"]])


def test_dino_center_of_three_steps():
    file = numbers("dino")
    method = DINOConfig(dim=4, hidden_dim=4, out_dim=12).build(Backbone.wrap(nn.Identity(), dim=4))
    method.double()
    for teacher, center in zip(file["seq_teacher"], file["seq_center"], strict=True):
        update = {"mean": teacher.mean(0)}
        method.after_step(Moment(), Step(teacher.sum(), teacher, update=update))
        torch.testing.assert_close(method.center, center, **TIGHT)


def test_dino_momentum_and_temperature():
    file = numbers("dino")
    epochs, per_epoch = file["sched_epochs_niter"].tolist()
    base, end = file["momentum_hp_base_final"].tolist()
    for step, expected in enumerate(file["momentum_schedule"].tolist()):
        at = Moment(step=step, total_steps=epochs * per_epoch)
        assert float(cosine(at.progress, base, end)) == pytest.approx(expected, rel=1e-12)
    rise = DINOConfig(teacher_temperature=0.07, temperature_epochs=4)
    found = [float(rise.temperature_at(torch.tensor(float(e)).double())) for e in range(epochs)]
    assert found == pytest.approx(file["teacher_temp_schedule"].tolist(), rel=1e-12)


@pytest.mark.parametrize("form", ["plain", "bn", "freeg"])
def test_dino_head(form):
    file = numbers("dino")
    head = DistillationHead(
        6, 10, 10, 5, 12, norm=form == "bn", free_scale=form == "freeg"
    ).double()
    saved = {key.split("_p.")[1]: a for key, a in file.items() if key.startswith(f"head_{form}_p.")}
    names = {"last_layer.weight_v": "last.weight", "last_layer.weight_g": "scale"}
    saved = {names.get(key, key): a for key, a in saved.items()}
    if form != "freeg":
        assert (saved.pop("scale") == 1).all()
    missing, unexpected = head.load_state_dict(saved, strict=False)
    assert not unexpected and all("running" in m or "num_batches" in m for m in missing)
    (x,) = leaves(file, f"head_{form}_x")
    y = head(x)
    torch.testing.assert_close(y, file[f"head_{form}_y"], **TIGHT)
    parameters = dict(head.named_parameters())
    theirs = {
        names.get(k.split("_g.")[1], k.split("_g.")[1]): a
        for k, a in file.items()
        if k.startswith(f"head_{form}_g.")
    }
    assert parameters.keys() == theirs.keys()
    gradients = torch.autograd.grad((y * file[f"head_{form}_w"]).sum(), [x, *parameters.values()])
    expected = [file[f"head_{form}_grad_x"], *(theirs[name] for name in parameters)]
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)
