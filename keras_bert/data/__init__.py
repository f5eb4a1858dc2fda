"""Data: text to documents to examples to records to batches, as `tf.data` for any backend."""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "keras_bert.data feeds every backend through tf.data and needs TensorFlow: run "
        "`pip install 'keras3-bert[tensorflow]'`."
    ) from error

from keras_bert.data.batches import pretraining
from keras_bert.data.pairs import pairs
from keras_bert.data.questions import squad
from keras_bert.data.tagged_words import tagging
from keras_bert.data.texts import classification

__all__ = ["classification", "pairs", "pretraining", "squad", "tagging"]
