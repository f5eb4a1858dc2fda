"""Layers: one idea a file, `keras.ops` only, each usable in anyone's functional model.

Shape letters, here and everywhere else:
B batch, T tokens, D `hidden_dim`, F `intermediate_dim`, N heads, H head width,
V vocabulary, M masked positions, C classes, P `max_sequence_length`.
"""

from keras_bert.layers.attention import SelfAttention
from keras_bert.layers.crf import Crf, CrfLoss
from keras_bert.layers.dropout import Dropout
from keras_bert.layers.embeddings import CheckedEmbedding, PositionEmbedding
from keras_bert.layers.encoder_block import EncoderBlock
from keras_bert.layers.masked_lm_head import MaskedLMHead, OutputBias
from keras_bert.layers.pooler import Pooler
from keras_bert.layers.spans import SpansApart

__all__ = [
    "CheckedEmbedding",
    "Crf",
    "CrfLoss",
    "Dropout",
    "EncoderBlock",
    "MaskedLMHead",
    "OutputBias",
    "Pooler",
    "PositionEmbedding",
    "SelfAttention",
    "SpansApart",
]
