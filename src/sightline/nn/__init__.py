"""Parts that methods are made of."""

from sightline.nn.encoder import Backbone, Encoder, Teacher, encoders
from sightline.nn.heads import mlp
from sightline.nn.memory import Memory
from sightline.nn.queue import Queue

__all__ = ["Backbone", "Encoder", "Memory", "Queue", "Teacher", "encoders", "mlp"]
