"""The teacher's update takes one launch, and on a GPU gives torch's averages."""

import copy
import sys
from unittest import mock

import pytest
import torch
from torch import nn

from selfsight.nn import Teacher, ema_teacher

pytest.importorskip("triton")
from selfsight.triton_kernels import moving_average
from selfsight.triton_kernels.tensor_lists import CHUNK
from tests.triton_kernels.interpreted_lists import difference
from tests.views.test_triton import Operations

MOMENTA = [0.0, 0.3, 0.5, 0.6, 0.996, 1.0]


def pair(device="cpu", number=1):
    """A student, and a teacher that started from other weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(CHUNK, 2), nn.Conv2d(4, 8, 3)]
    student = nn.Sequential(*(copy.deepcopy(layer) for _ in range(number) for layer in layers))
    student = student.to(device, memory_format=torch.channels_last)
    teacher = Teacher(student)
    for p in teacher.parameters():
        p.data.normal_()
    return student, teacher


def scalar(number, dtype=torch.float32):
    return torch.tensor(number, dtype=dtype, device="cuda")


@pytest.mark.parametrize("number", [1, 9])
@pytest.mark.parametrize("momentum", [0.9, torch.tensor(0.9, dtype=torch.float64)])
def test_an_update_is_one_launch_for_any_number_of_tensors(monkeypatch, momentum, number):
    kernel = mock.MagicMock()
    monkeypatch.setattr(moving_average, "lerp_kernel", kernel)
    monkeypatch.setattr(ema_teacher, "use_triton", lambda x: True)
    (student, teacher), skipped = pair(number=number), torch.tensor(0.0)
    with Operations() as operations:
        teacher.follow(student, momentum, skipped=skipped)
    kernel.__getitem__.return_value.assert_called_once()
    assert operations.names == ["zeros", "unbind", "_foreach_add_", "view"]


def test_other_layouts_are_averaged_by_torch(monkeypatch):
    monkeypatch.setattr(ema_teacher, "use_triton", lambda x: True)
    student, teacher = pair()
    student.to(memory_format=torch.contiguous_format)
    teacher.follow(student, 0.0, skipped=torch.tensor(0.0))
    assert all(map(torch.equal, teacher.parameters(), student.parameters()))


def test_a_cpu_needs_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "selfsight.triton_kernels.moving_average", None)
    student, teacher = pair()
    teacher.follow(student, 0.0, skipped=torch.tensor(0.0))
    assert all(map(torch.equal, teacher.parameters(), student.parameters()))


@pytest.mark.gpu
@pytest.mark.parametrize("momentum", MOMENTA)
def test_averages_on_a_gpu_are_those_of_torch(momentum):
    student, plain = pair("cuda")
    plain.follow(student, momentum)
    expected = list(plain.parameters())
    for value in (momentum, scalar(momentum, torch.float64)):
        for skipped in (scalar(0.0), None):
            student, teacher = pair("cuda")
            teacher.follow(student, value, skipped=skipped)
            assert difference(teacher.parameters(), expected) < 1e-6
            if momentum in (0.0, 1.0):
                assert all(map(torch.equal, teacher.parameters(), expected))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.3, 0.996])
def test_a_skipped_update_on_a_gpu_changes_no_bit(momentum, dtype):
    for value in (momentum, scalar(momentum, dtype)):
        student, teacher = pair("cuda")
        before = [p.clone() for p in teacher.parameters()]
        for p in student.parameters():
            p.data.fill_(torch.nan)
        teacher.follow(student, value, skipped=scalar(1.0))
        assert all(map(torch.equal, before, teacher.parameters()))


@pytest.mark.gpu
def test_a_cuda_graph_of_updates_is_the_plain_updates():
    student, teacher = pair("cuda")
    _, plain = pair("cuda")
    momentum, skipped = scalar(0.9, torch.float64), scalar(0.0)

    def update(teacher):
        teacher.follow(student, momentum, skipped=skipped)
        teacher.follow(student, 0.7, skipped=skipped)

    update(teacher)  # compiles
    update(plain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update(teacher)
    for number in range(4):
        momentum.fill_(0.9 + 0.02 * number)
        skipped.fill_(float(number == 2))
        with torch.no_grad():
            for p in student.parameters():
                p.mul_(-1.1)
        graph.replay()
        update(plain)
        assert all(map(torch.equal, teacher.parameters(), plain.parameters()))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.gpu
def test_the_host_does_not_wait_for_an_update():
    student, teacher = pair("cuda")
    momentum, skipped = scalar(0.9, torch.float64), scalar(0.0)
    teacher.follow(student, momentum, skipped=skipped)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for value in (momentum, 0.9):
            teacher.follow(student, value, skipped=skipped)
    finally:
        torch.cuda.set_sync_debug_mode("default")
