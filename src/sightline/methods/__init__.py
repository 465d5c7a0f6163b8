"""Every method by name. Adding one: write its file, add its line here."""

from sightline.methods.barlow_twins import BarlowTwinsConfig
from sightline.methods.base import DataFacts, Method, MethodConfig, Moment, Step
from sightline.methods.byol import BYOLConfig
from sightline.methods.fast_moco import FastMoCoConfig
from sightline.methods.instdisc import InstDiscConfig
from sightline.methods.jcl import JCLConfig
from sightline.methods.moco import MoCoConfig
from sightline.methods.mocov3 import MoCoV3Config
from sightline.methods.msbreg import MSBRegConfig
from sightline.methods.nnclr import NNCLRConfig
from sightline.methods.simclr import SimCLRConfig
from sightline.methods.simo import SiMoConfig
from sightline.methods.simsiam import SimSiamConfig
from sightline.methods.supervised import SupervisedConfig
from sightline.methods.swav import SwAVConfig
from sightline.methods.vicreg import VICRegConfig

METHODS: dict[str, type[MethodConfig]] = {
    "barlow_twins": BarlowTwinsConfig,
    "byol": BYOLConfig,
    "fast_moco": FastMoCoConfig,
    "instdisc": InstDiscConfig,
    "jcl": JCLConfig,
    "moco": MoCoConfig,
    "mocov3": MoCoV3Config,
    "msbreg": MSBRegConfig,
    "nnclr": NNCLRConfig,
    "simclr": SimCLRConfig,
    "simo": SiMoConfig,
    "simsiam": SimSiamConfig,
    "swav": SwAVConfig,
    "vicreg": VICRegConfig,
}

# What the tables compare with; these learn from labels.
BASELINES: dict[str, type[MethodConfig]] = {"supervised": SupervisedConfig}

__all__ = ["BASELINES", "METHODS", "DataFacts", "Method", "MethodConfig", "Moment", "Step"]
