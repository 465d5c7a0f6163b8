"""What the lines for detectron2 call: its ResNet in its names, its config and its checkpointer.

detectron2 has no wheel. This is written from facts of its documentation and source: the modules
that a ResNet has (stem.conv1, res2 to res5, conv1 to conv3, shortcut, a `norm` in each), where its
strides are, and the settings that a config reads.
"""

import pickle
import sys
from types import ModuleType, SimpleNamespace

import torch
import torch.nn.functional as F
import yaml
from torch import nn

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class FrozenNorm(nn.Module):
    """Four buffers and no counter."""

    def __init__(self, width):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.full((width,), torch.nan))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Conv(nn.Conv2d):
    def __init__(self, i, o, size, stride=1):
        super().__init__(i, o, size, stride, size // 2, bias=False)
        self.norm = FrozenNorm(o)

    def forward(self, x):
        return self.norm(super().forward(x))


class Block(nn.Module):
    def __init__(self, i, inner, o, stride, *, bottleneck):
        super().__init__()
        self.shortcut = Conv(i, o, 1, stride) if i != o else None
        if bottleneck:  # the stride is in the 3 x 3, as STRIDE_IN_1X1: False says
            convs = (Conv(i, inner, 1), Conv(inner, inner, 3, stride), Conv(inner, o, 1))
        else:
            convs = (Conv(i, o, 3, stride), Conv(o, o, 3))
        for number, conv in enumerate(convs, start=1):
            self.add_module(f"conv{number}", conv)
        self.depth = len(convs)

    def forward(self, x):
        y = x
        for number in range(1, self.depth + 1):
            y = getattr(self, f"conv{number}")(y if number == 1 else F.relu(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        settings = cfg.MODEL.RESNETS
        assert settings.STRIDE_IN_1X1 is False
        bottleneck, before = settings.DEPTH >= 50, settings.STEM_OUT_CHANNELS
        assert bottleneck or settings.RES2_OUT_CHANNELS == 64
        self.stem = nn.Module()
        self.stem.conv1 = Conv(len(cfg.MODEL.PIXEL_MEAN), before, 7, 2)
        out, inner = settings.RES2_OUT_CHANNELS, settings.WIDTH_PER_GROUP
        for stage, depth in enumerate(BLOCKS[settings.DEPTH]):
            blocks = []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                blocks.append(Block(before, inner, out, stride, bottleneck=bottleneck))
                before = out
            self.add_module(f"res{stage + 2}", nn.Sequential(*blocks))
            out, inner = 2 * out, 2 * inner

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem.conv1(x)), 3, 2, 1)
        return {"res5": self.res5(self.res4(self.res3(self.res2(x))))}


class Config:
    def __init__(self):
        resnets = SimpleNamespace(DEPTH=50, STRIDE_IN_1X1=True, OUT_FEATURES=["res4"])
        vars(resnets).update(STEM_OUT_CHANNELS=64, RES2_OUT_CHANNELS=256, WIDTH_PER_GROUP=64)
        self.MODEL = SimpleNamespace(WEIGHTS="", PIXEL_MEAN=[], PIXEL_STD=[], RESNETS=resnets)
        self.INPUT = SimpleNamespace(FORMAT="BGR")

    def merge_from_file(self, path):
        def merge(into, values):
            for key, value in values.items():
                assert hasattr(into, key), f"detectron2 has no setting {key}"
                known = getattr(into, key)
                merge(known, value) if isinstance(value, dict) else setattr(into, key, value)

        with open(path) as file:
            merge(self, yaml.safe_load(file))


class Checkpointer:
    def __init__(self, model):
        self.model = model

    def load(self, path):
        with open(path, "rb") as file:
            content = pickle.load(file, encoding="latin1")
        assert content["matching_heuristics"] is True and content["__author__"]
        weights = {name: torch.from_numpy(value) for name, value in content["model"].items()}
        self.model.load_state_dict(weights, strict=True)


def install(monkeypatch):
    """Let `import detectron2` find this."""
    parts = {
        "checkpoint": {"DetectionCheckpointer": Checkpointer},
        "config": {"get_cfg": Config},
        "modeling": {"build_backbone": ResNet},
    }
    monkeypatch.setitem(sys.modules, "detectron2", ModuleType("detectron2"))
    for name, content in parts.items():
        module = ModuleType(f"detectron2.{name}")
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"detectron2.{name}", module)
