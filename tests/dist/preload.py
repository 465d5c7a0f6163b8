"""Imported once, before the processes of a group are forked."""

import torch
import torch._dynamo  # by torch's optimizers, at their first step

import selfsight.api  # noqa: F401

torch.set_num_threads(1)
