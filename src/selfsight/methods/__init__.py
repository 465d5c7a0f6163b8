"""Every method by name. Adding one: write its file, add its line here."""

from selfsight.methods.barlow_twins import BarlowTwinsConfig
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step
from selfsight.methods.byol import BYOLConfig
from selfsight.methods.fast_moco import FastMoCoConfig
from selfsight.methods.instdisc import InstDiscConfig
from selfsight.methods.jcl import JCLConfig
from selfsight.methods.moco import MoCoConfig
from selfsight.methods.mocov3 import MoCoV3Config
from selfsight.methods.msbreg import MSBRegConfig
from selfsight.methods.nnclr import NNCLRConfig
from selfsight.methods.simclr import SimCLRConfig
from selfsight.methods.simo import SiMoConfig
from selfsight.methods.simsiam import SimSiamConfig
from selfsight.methods.supervised import SupervisedConfig
from selfsight.methods.swav import SwAVConfig
from selfsight.methods.vicreg import VICRegConfig

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
