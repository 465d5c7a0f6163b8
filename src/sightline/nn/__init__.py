"""Parts that methods are made of."""

from sightline.nn.encoder import Backbone, Encoder, Teacher
from sightline.nn.heads import mlp
from sightline.nn.queue import Queue

__all__ = ["Backbone", "Encoder", "Queue", "Teacher", "mlp"]
