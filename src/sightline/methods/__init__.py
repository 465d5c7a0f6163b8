"""Every method by name. Adding one: write its file, add its line here."""

from sightline.methods.base import DataFacts, Method, MethodConfig, Moment, Step
from sightline.methods.byol import BYOLConfig
from sightline.methods.moco import MoCoConfig
from sightline.methods.mocov3 import MoCoV3Config
from sightline.methods.simclr import SimCLRConfig
from sightline.methods.simsiam import SimSiamConfig

METHODS: dict[str, type[MethodConfig]] = {
    "byol": BYOLConfig,
    "moco": MoCoConfig,
    "mocov3": MoCoV3Config,
    "simclr": SimCLRConfig,
    "simsiam": SimSiamConfig,
}

__all__ = ["METHODS", "DataFacts", "Method", "MethodConfig", "Moment", "Step"]
