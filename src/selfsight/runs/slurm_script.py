"""A SLURM script for a pretraining command, which is queued again when its time is over."""

import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from selfsight.options.pretrain_options import PRETRAIN_DEFAULTS, PretrainOptions
from selfsight.stop_signals import exit_status
from selfsight.version import __version__

SCRIPT = """#!/bin/bash
# Written by selfsight {version}. Adapt the #SBATCH lines to your cluster; ntasks-per-node is the
# number of GPUs of a node. Submit it with: sbatch FILE
#SBATCH --job-name={name}
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
# Two minutes before the time is over SLURM sends SIGUSR1: the run saves a checkpoint and exits with
# {status}, and the job goes back to the queue. The same command then resumes the run.
#SBATCH --signal=USR1@120

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$@"' - \\
    {command}
status=$?
if [ "$status" -eq {status} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def slurm_script(data: str, options: PretrainOptions, out: Path) -> str:
    """Return the script that trains with these options in the folder `out`."""
    words = [sys.executable, "-m", "selfsight", "pretrain", data, "--out", str(out), "--resume"]
    return SCRIPT.format(
        version=__version__,
        name=re.sub(r"[^\w.-]", "-", out.name),
        gpus="" if options.device == "cpu" else "#SBATCH --gpus-per-node=1\n",
        status=exit_status(signal.SIGUSR1),
        command=shlex.join([*words, *write_flags(options)]),
    )


def write_flags(options: PretrainOptions) -> list[str]:
    """Return the flags of the options that are not at their default, then the settings."""
    flags: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in ("out", "resume", "sbatch", "settings"):
            continue
        if value == getattr(PRETRAIN_DEFAULTS, field.name):
            continue
        flag = f"--{field.name.replace('_', '-')}"
        several = isinstance(value, Sequence) and not isinstance(value, str)
        words = [] if value is True else list(map(str, value)) if several else [str(value)]
        if len(words) == 1 and words[0].startswith("-"):  # it would be taken for a flag
            flags.append(f"{flag}={words[0]}")
        else:
            flags += [flag, *words]
    return [*flags, *options.settings]
