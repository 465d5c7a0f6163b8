"""Tables and claims of papers as data: one file per study.

An arm is called `STUDY.ARM` wherever a recipe's name can be given.
"""

from selfsight.errors import UserError, suggest
from selfsight.studies import (
    barlow_twins_batch,
    eqco_negatives,
    eqco_queries,
    fast_moco_adamw,
    fast_moco_batch,
    fast_moco_combine_stage,
    fast_moco_epochs,
    fast_moco_frameworks,
    fast_moco_patches,
    jcl_ablations,
    jcl_multi_key,
    methods,
    mocov3_batch,
    mocov3_bn_free,
    mocov3_instability,
    mocov3_lamb,
    mocov3_patch_projection,
    mocov3_predictor,
    mocov3_vit,
    msbreg_lambdas,
    msbreg_norm,
    msbreg_repetition,
    msbreg_uniformity,
    nnclr_epochs,
    simclr_augmentations,
    simclr_batch,
    simo_alpha,
    simo_momentum_and_bn,
    simo_negatives,
    simsiam_comparison,
    speed_run,
    swav_epochs,
)
from selfsight.studies.study_types import Arm, Claim, Study

__all__ = ["ARMS", "STUDIES", "Arm", "Claim", "Study", "find_study"]

STUDIES: dict[str, Study] = {
    "barlow_twins_batch": barlow_twins_batch.STUDY,
    "eqco_negatives": eqco_negatives.STUDY,
    "eqco_queries": eqco_queries.STUDY,
    "fast_moco_adamw": fast_moco_adamw.STUDY,
    "fast_moco_batch": fast_moco_batch.STUDY,
    "fast_moco_combine_stage": fast_moco_combine_stage.STUDY,
    "fast_moco_epochs": fast_moco_epochs.STUDY,
    "fast_moco_frameworks": fast_moco_frameworks.STUDY,
    "fast_moco_patches": fast_moco_patches.STUDY,
    "jcl_ablations": jcl_ablations.STUDY,
    "jcl_multi_key": jcl_multi_key.STUDY,
    "methods": methods.STUDY,
    "mocov3_batch": mocov3_batch.STUDY,
    "mocov3_bn_free": mocov3_bn_free.STUDY,
    "mocov3_instability": mocov3_instability.STUDY,
    "mocov3_lamb": mocov3_lamb.STUDY,
    "mocov3_patch_projection": mocov3_patch_projection.STUDY,
    "mocov3_predictor": mocov3_predictor.STUDY,
    "mocov3_vit": mocov3_vit.STUDY,
    "msbreg_lambdas": msbreg_lambdas.STUDY,
    "msbreg_norm": msbreg_norm.STUDY,
    "msbreg_repetition": msbreg_repetition.STUDY,
    "msbreg_uniformity": msbreg_uniformity.STUDY,
    "nnclr_epochs": nnclr_epochs.STUDY,
    "simclr_augmentations": simclr_augmentations.STUDY,
    "simclr_batch": simclr_batch.STUDY,
    "simo_alpha": simo_alpha.STUDY,
    "simo_momentum_and_bn": simo_momentum_and_bn.STUDY,
    "simo_negatives": simo_negatives.STUDY,
    "simsiam_comparison": simsiam_comparison.STUDY,
    "speed_run": speed_run.STUDY,
    "swav_epochs": swav_epochs.STUDY,
}

ARMS: dict[str, Arm] = {
    f"{study.name}.{arm.name}": arm for study in STUDIES.values() for arm in study.arms
}


def find_study(name: str) -> Study:
    """Return the study of this name."""
    if name not in STUDIES:
        raise UserError(
            f'There is no study "{name}".{suggest(name, STUDIES)} `selfsight studies` lists them.'
        )
    return STUDIES[name]
