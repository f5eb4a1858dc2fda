"""Who looks at whom: the attention probabilities of every block."""

from __future__ import annotations

from typing import Any

import keras

from keras_bert.layers import EncoderBlock


def attention_maps(encoder: keras.Model, inputs: dict[str, Any]) -> list[Any]:
    """Computes every block's attention map, without dropout.

    A function beside the model: the model itself never keeps its maps, which for a batch of
    32 x 512 tokens would take 400 MB a block of BERT-Base.

    Args:
        encoder: A model whose graph holds `EncoderBlock`s.
        inputs: The encoder's inputs, int (B, T) each.

    Returns:
        A tensor for each block in their order, float (B, N, T, T): batch, head, the position
        that looks, the position looked at. A row sums to 1.
    """
    blocks = [layer for layer in encoder.layers if isinstance(layer, EncoderBlock)]
    # A block's input is the pair (x, padding_mask).
    pairs = keras.Model(encoder.input, {block.name: block.input for block in blocks})(inputs)
    return [block.attention.probabilities(*pairs[block.name]) for block in blocks]
