"""Tasks: each a function from an encoder to a model whose outputs are named like the labels."""

from __future__ import annotations

from typing import Any

import keras

from keras_bert.layers import EncoderBlock, MaskedLMHead, OutputBias
from keras_bert.layers.initializers import truncated_normal
from keras_bert.training.model import Model


def pretraining(encoder: keras.Model) -> Model:
    """Masked-LM and next-sentence prediction on one encoder.

    One more input: `mask_positions`, int (B, M), where tokens were masked. Outputs, both
    logits: `masked_lm`, float (B, M, V), and `next_sentence`, float (B, 2), where class 0
    says that B follows A and class 1 that it's a random sentence.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1.
    """
    inputs = encoder.input | {"mask_positions": _mask_positions()}
    outputs = {
        "masked_lm": _masked_lm(encoder, inputs["mask_positions"]),
        "next_sentence": _dense(encoder, 2, "next_sentence")(encoder.output["pooled_output"]),
    }
    return Model(inputs, outputs, name="pretraining")


def masked_lm(encoder: keras.Model) -> Model:
    """Masked-LM alone: `mask_positions`, int (B, M), to logits `masked_lm`, float (B, M, V)."""
    inputs = encoder.input | {"mask_positions": _mask_positions()}
    return Model(
        inputs, {"masked_lm": _masked_lm(encoder, inputs["mask_positions"])}, name="masked_lm"
    )


def text_classifier(encoder: keras.Model, num_classes: int, dropout: float = 0.1) -> Model:
    """Classifies a text or a pair of texts by the pooled vector.

    Output `label`: logits, float (B, C); `num_classes=1` is regression, the value itself.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 4.1.
    """
    x = keras.layers.Dropout(dropout, name="label_dropout")(encoder.output["pooled_output"])
    logits = _dense(encoder, num_classes, "label")(x)
    return Model(encoder.input, {"label": logits}, name="text_classifier")


def _masked_lm(encoder: keras.Model, mask_positions: Any) -> Any:
    table = encoder.get_layer("token_embedding")
    block = _last_block(encoder)
    head = MaskedLMHead(
        table.output_dim,
        activation=block.activation,
        norm_epsilon=block.norm_epsilon,
        initializer_range=block.initializer_range,
        name="masked_lm_head",
    )
    x = head(encoder.output["sequence_output"], mask_positions)
    return OutputBias(name="masked_lm")(table(x, reverse=True))


def _mask_positions() -> Any:
    return keras.Input((None,), dtype="int32", name="mask_positions")


def _dense(encoder: keras.Model, units: int, name: str) -> keras.layers.Dense:
    initializer = truncated_normal(_last_block(encoder).initializer_range)
    # Logits stay in float32 under a mixed policy: a loss in bfloat16 has three digits.
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name=name)


def _last_block(encoder: keras.Model) -> EncoderBlock:
    return [layer for layer in encoder.layers if isinstance(layer, EncoderBlock)][-1]
