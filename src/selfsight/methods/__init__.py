"""Every method by name. Adding one: write its file, add its line here."""

from selfsight.methods.barlow_twins import BarlowTwins, BarlowTwinsConfig
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step
from selfsight.methods.byol import BYOL, BYOLConfig
from selfsight.methods.fast_moco import FastMoCo, FastMoCoConfig
from selfsight.methods.instdisc import InstDisc, InstDiscConfig
from selfsight.methods.jcl import JCL, JCLConfig
from selfsight.methods.moco import MoCo, MoCoConfig
from selfsight.methods.mocov3 import MoCoV3, MoCoV3Config
from selfsight.methods.msbreg import MSBReg, MSBRegConfig
from selfsight.methods.nnclr import NNCLR, NNCLRConfig
from selfsight.methods.simclr import SimCLR, SimCLRConfig
from selfsight.methods.simo import SiMo, SiMoConfig
from selfsight.methods.simsiam import SimSiam, SimSiamConfig
from selfsight.methods.supervised import Supervised, SupervisedConfig
from selfsight.methods.swav import SwAV, SwAVConfig
from selfsight.methods.vicreg import VICReg, VICRegConfig

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

__all__ = [
    "BASELINES",
    "BYOL",
    "JCL",
    "METHODS",
    "NNCLR",
    "BYOLConfig",
    "BarlowTwins",
    "BarlowTwinsConfig",
    "DataInfo",
    "FastMoCo",
    "FastMoCoConfig",
    "InstDisc",
    "InstDiscConfig",
    "JCLConfig",
    "MSBReg",
    "MSBRegConfig",
    "Method",
    "MethodConfig",
    "MoCo",
    "MoCoConfig",
    "MoCoV3",
    "MoCoV3Config",
    "Moment",
    "NNCLRConfig",
    "SiMo",
    "SiMoConfig",
    "SimCLR",
    "SimCLRConfig",
    "SimSiam",
    "SimSiamConfig",
    "Step",
    "Supervised",
    "SupervisedConfig",
    "SwAV",
    "SwAVConfig",
    "VICReg",
    "VICRegConfig",
]
