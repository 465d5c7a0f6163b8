"""Imported once, before the processes of a group are forked."""

import torch
import torch._dynamo  # by torch's optimizers, at their first step

import tests.evals.detection.test_train_detector  # and torchvision
import tests.losses.test_blockwise_contrastive  # and what torch needs to compile
import tests.nn.test_combinatorial_patches  # noqa: F401, and hypothesis

torch.set_num_threads(1)
