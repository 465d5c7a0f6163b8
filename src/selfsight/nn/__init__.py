"""Modules that methods are built from."""

from selfsight.nn.ema_teacher import Teacher
from selfsight.nn.encoder import Backbone, Encoder, encoders
from selfsight.nn.heads import mlp
from selfsight.nn.memory_bank import MemoryBank
from selfsight.nn.queue import Queue

__all__ = ["Backbone", "Encoder", "MemoryBank", "Queue", "Teacher", "encoders", "mlp"]
