"""Training: one update and what surrounds it, for plain `model.fit`."""

from keras_bert.training.memory import MemoryEstimate, memory_estimate, recompute
from keras_bert.training.model import Model
from keras_bert.training.optimizers import AdamW, Lamb
from keras_bert.training.schedules import WarmupConstant, WarmupLinear, WarmupPolynomial
from keras_bert.training.strategies import describe_batch, model_parallel, strategy

__all__ = [
    "AdamW",
    "Lamb",
    "MemoryEstimate",
    "Model",
    "WarmupConstant",
    "WarmupLinear",
    "WarmupPolynomial",
    "describe_batch",
    "memory_estimate",
    "model_parallel",
    "recompute",
    "strategy",
]
