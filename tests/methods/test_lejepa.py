"""LeJEPA: SIGReg by numpy and in closed form, its loss by hand, its directions and its views."""

import math

import numpy as np
import pytest
import torch

from selfsight.errors import UserError
from selfsight.losses import lejepa, sigreg
from selfsight.methods import Moment
from selfsight.methods.lejepa import LeJEPAConfig
from selfsight.views import View
from tests.methods.small import make, moment, views

V, N, D, S = 3, 10, 5, 7


def drawn(*shape, seed=0, scale=1.0, shift=0.0):
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(scale * numbers + shift)


def by_numpy(z, directions, t):
    """The statistic of each view and direction: complex numbers, both signs of t, one at a time."""
    a = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    statistics = []
    for view in z:
        for direction in a:
            u = view @ direction
            empirical = np.array([np.exp(1j * s * u).mean() for s in t])
            distance = np.abs(empirical - np.exp(-(t**2) / 2)) ** 2
            statistics.append(len(u) * np.trapezoid(distance * np.exp(-(t**2) / 2), t))
    return np.mean(statistics)


def in_closed_form(z, directions):
    """SIGReg with the integral over all t (Epps and Pulley 1983), and its gradient."""
    a = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    value, gradient = 0.0, np.zeros_like(z)
    for v, view in enumerate(z):
        for direction in a:
            u = view @ direction
            apart = u[:, None] - u
            pairs, own = np.exp(-(apart**2) / 2), np.exp(-(u**2) / 4)
            value += math.sqrt(2 * math.pi) * pairs.sum() / len(u)
            value += -2 * math.sqrt(math.pi) * own.sum() + len(u) * math.sqrt(2 * math.pi / 3)
            slope = -2 * math.sqrt(2 * math.pi) * (apart * pairs).sum(1) / len(u)
            slope += math.sqrt(math.pi) * u * own
            gradient[v] += np.outer(slope, direction)
    count = len(z) * len(a)
    return value / count, gradient / count


@pytest.mark.parametrize(("knots", "last"), [(17, 3.0), (9, 5.0)])
def test_sigreg_is_the_trapezoid_rule_over_both_signs_of_t(knots, last):
    z, directions = drawn(V, N, D, scale=1.7, shift=0.4), drawn(S, D, seed=1)
    t = np.linspace(-last, last, 2 * knots - 1)
    found = sigreg(z, directions, num_knots=knots, last_knot=last).item()
    assert found == pytest.approx(by_numpy(z.numpy(), directions.numpy(), t), rel=1e-12)


def test_sigreg_of_many_knots_is_the_integral_and_so_is_its_gradient():
    z, directions = drawn(V, N, D, scale=1.7, shift=0.4).requires_grad_(), drawn(S, D, seed=1)
    value, gradient = in_closed_form(z.detach().numpy(), directions.numpy())
    many = sigreg(z, directions, num_knots=401, last_knot=12.0)
    assert many.item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(many, z)[0], gradient, atol=1e-12)
    few = sigreg(z, directions)  # what is left out lies beyond 3
    assert few.item() == pytest.approx(value, rel=0.01)
    np.testing.assert_allclose(torch.autograd.grad(few, z)[0], gradient, atol=0.01)


def test_sigreg_of_normal_rows_has_its_known_mean_and_other_rows_have_more():
    """For N(0, I) its mean is the integral of w(t) (1 - exp(-t^2)), with any number of images."""
    directions = drawn(256, 64, seed=1)
    expected = math.sqrt(2 * math.pi) * (1 - math.sqrt(1 / 3))
    for count in (32, 256):
        normal = sigreg(drawn(4, count, 64, seed=count), directions).item()
        assert normal == pytest.approx(expected, rel=0.1)
    wide, shifted = drawn(1, 256, 64, scale=1.5), drawn(1, 256, 64, shift=0.5)
    for other in (wide, shifted, torch.zeros(1, 256, 64)):
        assert sigreg(other, directions).item() > 3 * expected


def test_sigreg_is_taken_in_float32_and_does_not_see_the_length_of_a_direction():
    z, directions = drawn(V, N, D), drawn(S, D, seed=1)
    exact = sigreg(z, directions)
    assert torch.allclose(sigreg(z, 7 * directions), exact, rtol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert sigreg(z.float(), directions).item() == pytest.approx(exact.item(), rel=1e-5)
    assert sigreg(z.bfloat16(), directions).dtype == torch.float32


@pytest.mark.parametrize("num_large", [1, 2, V])
def test_the_loss_is_prediction_and_sigreg(num_large):
    z, directions = drawn(V, N, D), drawn(S, D, seed=1)
    squares = [
        (z[:num_large, n, d].mean() - z[v, n, d]) ** 2
        for v in range(V)
        for n in range(N)
        for d in range(D)
    ]
    spread = by_numpy(z.numpy(), directions.numpy(), np.linspace(-3, 3, 33))
    expected = 0.9 * np.mean(squares) + 0.1 * spread
    found = lejepa(z, directions, num_large=num_large, sigreg_weight=0.1)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_flows_through_the_mean_too():
    z, directions = drawn(V, 4, D).requires_grad_(), drawn(S, D, seed=1)
    assert torch.autograd.gradcheck(lambda z: lejepa(z, directions), z, fast_mode=True)


@pytest.mark.parametrize("numbers", [(2, 2), (4, 0), (1, 1)])
def test_forward_is_the_loss_of_all_views_in_one_pass_for_each_size(numbers):
    num_large, num_small = numbers
    settings = dict(sigreg_weight=0.2, num_knots=3, last_knot=5.0)
    method = make("lejepa", num_large=num_large, num_small=num_small, **settings)
    x, at = views(method), moment(5)
    assert [v.shape[2] for v in x] == [16] * num_large + [6] * num_small
    net = method.student
    features = [net.backbone(torch.cat(x[:num_large]))]
    features += [net.backbone(torch.cat(x[num_large:]))] if num_small else []
    z = net.projector(torch.cat(features)).unflatten(0, (len(x), 8))
    directions = at.shared_normal("directions", 16, 8, torch.device("cpu"))
    expected = lejepa(z, directions, num_large=num_large, **settings)
    result = method(x, at)
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(result.features, features[0][:8])


def test_directions_are_new_in_each_step_and_the_same_for_any_images():
    cpu = torch.device("cpu")

    def directions(**where):
        return Moment(**where).shared_normal("directions", S, D, cpu)

    first = directions(step=1, index=torch.arange(3))
    assert torch.equal(first, directions(step=torch.tensor(1), index=torch.arange(9) + 40))
    assert not torch.isclose(first, directions(step=2)).any()
    assert not torch.isclose(first, directions(step=1, seed=1)).any()
    assert torch.equal(first[:4], Moment(step=1).shared_normal("directions", 4, D, cpu))


def test_views_follow_both_numbers():
    large, odd = View(size=32), View(size=16, scale=(0.1, 0.3))

    def sizes(num_large, num_small, *given):
        config = LeJEPAConfig(num_large=num_large, num_small=num_small)
        return [view.size for view in config.match_views(given)]

    assert sizes(2, 2, large, large) == [32, 32, 13, 13]
    assert sizes(2, 2, large, large, large, large) == [32, 32, 13, 13]
    assert sizes(4, 1, large, large, odd, odd) == [32, 32, 32, 32, 16]
    assert sizes(1, 0, large, large, odd) == [32]


def test_batch_norm_of_groups_is_refused():
    with pytest.raises(UserError, match=r'Use method\.bn "sync"'):
        LeJEPAConfig(bn="split").validate()
