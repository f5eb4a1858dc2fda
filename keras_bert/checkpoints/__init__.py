"""Checkpoints: a model, its tokenizer and its labels in one folder."""

from keras_bert.checkpoints.preset import Preset, load, save

__all__ = ["Preset", "load", "save"]
