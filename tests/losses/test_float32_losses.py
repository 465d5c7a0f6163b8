"""Every loss computes in at least float32, also where autocast is on."""

import pytest
import torch

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.losses import (
    barlow_twins,
    float32_losses,
    info_nce,
    jcl,
    negative_cosine,
    nt_xent,
    queue_info_nce,
    regression,
    vicreg,
)
from selfsight.losses.float32_losses import at_least_float32

LOSSES = {
    "info_nce": lambda a, b, c: info_nce(a, b, temperature=0.07),
    "nt_xent": lambda a, b, c: nt_xent(a, b, temperature=0.07),
    "queue_info_nce": lambda a, b, c: queue_info_nce(a, b, c, temperature=0.07),
    "jcl": lambda a, b, c: jcl(a, torch.stack([b, c]), c, temperature=0.07, strength=1.0),
    "negative_cosine": lambda a, b, c: negative_cosine(a, b),
    "regression": lambda a, b, c: regression(a, b),
    "barlow_twins": lambda a, b, c: barlow_twins(a, b),
    "vicreg": lambda a, b, c: vicreg(a, b),
}


@pytest.fixture
def rows():
    torch.manual_seed(0)
    return torch.randn(3, 8, 16, dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16_rises_and_float64_stays(rows, name):
    low = rows.bfloat16()
    assert LOSSES[name](*low).dtype == torch.float32
    assert LOSSES[name](*rows).dtype == torch.float64
    torch.testing.assert_close(LOSSES[name](*low), LOSSES[name](*low.float()), rtol=0, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_changes_no_bit(rows, name):
    rows = rows.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = LOSSES[name](*rows)
    assert torch.equal(inside, LOSSES[name](*rows))


def test_losses_are_compiled_where_that_is_asked_for(monkeypatch, rows):
    made = []

    def compiled(function, **how):
        made.append(how)
        return lambda *args, **more: -function(*args, **more)

    monkeypatch.setattr(torch, "compile", compiled)
    loss = at_least_float32(lambda x, *, weight: weight * x.sum())
    plain = loss(rows, weight=2.0)
    assert plain == 2 * rows.sum() and not made
    monkeypatch.setattr(float32_losses, "is_compiled_on", lambda device: True)
    assert loss(rows, weight=2.0) == -plain == loss(rows, weight=2.0)
    assert made == [COMPILE_OPTIONS | {"fullgraph": True}]


def test_a_compiled_loss_takes_more_shapes_than_torch_allows_by_default(monkeypatch):
    """All losses share the code that is compiled, and with it torch's limit of eight versions."""
    compile_for_real = torch.compile

    def compiled(function, **_):
        return compile_for_real(function, fullgraph=True, dynamic=False, backend="eager")

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(float32_losses, "is_compiled_on", lambda device: True)
    loss = at_least_float32(lambda a, b: (a * b).sum())
    for width in range(1, 11):
        x = torch.ones(2, width)
        assert loss(x, x) == 2 * width
