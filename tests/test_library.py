"""The package as a library: its public names, imported when they are first used."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import selfsight
from selfsight.methods import BASELINES, METHODS, Method

CODE = """
import sys, selfsight
assert "torch" not in sys.modules, "import selfsight imports torch"
assert {"losses", "methods", "views", "optim", "nn", "backbones", "pretrain"} <= set(dir(selfsight))
assert "torch" not in sys.modules, "dir(selfsight) imports torch"
selfsight.losses.info_nce, selfsight.views.moco_v2, selfsight.optim.LARS, selfsight.nn.Backbone
selfsight.backbones.BackboneConfig
assert "selfsight.api" not in sys.modules, "a part imports the commands"
import selfsight.api, selfsight.bench
compilers = {"torch._dynamo", "torchvision", "sklearn", "timm", "triton"} & set(sys.modules)
assert not compilers, f"every command imports {compilers}, which takes seconds"
"""


def test_importing_selfsight_imports_no_torch_its_parts_on_first_use_and_commands_no_compiler():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists_and_a_wrong_one_is_an_attribute_error():
    for name in selfsight.__all__:
        assert getattr(selfsight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        selfsight.pretrian  # noqa: B018


@pytest.mark.parametrize("config", [*METHODS.values(), *BASELINES.values()])
def test_a_method_is_exported_beside_its_config(config):
    name = config.__name__.removesuffix("Config")
    method = getattr(selfsight.methods, name)
    assert issubclass(method, Method)
    assert inspect.getmodule(method) is inspect.getmodule(config)
    assert {name, config.__name__} <= set(selfsight.methods.__all__)


def test_the_code_of_the_library_page_trains_a_network_of_its_own():
    page = Path(__file__).parents[1] / "docs/library.md"
    loop, loss = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 32, 32, generator=g)
    views = [x + 0.1 * torch.randn(x.shape, generator=g) for _ in range(2)]
    torch.manual_seed(0)
    names = {"epochs": 10, "loader": [views, views]}
    before = loop.index("step, total_steps")
    exec(loop[:before], names)
    weights, keys = names["net"].conv1.weight.clone(), names["method"].teacher(x)[1]
    first = names["method"](views, names["Moment"](step=0, total_steps=20)).loss
    exec(loop[before:], names)
    assert names["step"] == 20
    assert names["out"].loss < first
    assert not torch.equal(names["net"].conv1.weight, weights)
    assert not torch.equal(names["method"].teacher(x)[1], keys)
    exec(loss, names)
    assert names["loss"].shape == ()
    assert len(loop.strip().splitlines()) <= 26
