"""The package as a library: its public names, imported when they are first used."""

import inspect
import subprocess
import sys

import pytest

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
"""


def test_importing_selfsight_imports_no_torch_and_its_parts_on_first_use():
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
