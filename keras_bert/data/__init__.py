"""Data: text to documents to examples to records to batches, as `tf.data` for any backend."""

from keras_bert.data.batches import pretraining
from keras_bert.data.texts import classification

__all__ = ["classification", "pretraining"]
