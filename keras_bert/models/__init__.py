"""Architectures: each a frozen config of numbers and a function from it to a `keras.Model`."""

from keras_bert.models.attention_maps import attention_maps
from keras_bert.models.bert import SIZES, BertConfig, bert

# The name in a preset's `config.json` -> (config class, function).
ARCHITECTURES = {"bert": (BertConfig, bert)}

__all__ = ["ARCHITECTURES", "SIZES", "BertConfig", "attention_maps", "bert"]
