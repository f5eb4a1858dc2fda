"""Training: one update and what surrounds it, for plain `model.fit`."""

from keras_bert.training.model import Model
from keras_bert.training.optimizers import AdamW
from keras_bert.training.schedules import WarmupLinear

__all__ = ["AdamW", "Model", "WarmupLinear"]
