"""Scores of where a span starts or ends, in each sequence of a packed row apart."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

# Far below any logit, and its softmax is 0: finite, so that an empty slot of weight 0 has no NaN.
OUTSIDE = -1e9


@keras.saving.register_keras_serializable("keras_bert")
class SpansApart(keras.layers.Layer):
    """Gives each of a row's S sequences its own copy of the row's logits, without the others'.

    A softmax over the last axis is then over the tokens of one sequence: neither padding nor what
    else is in the row has a part in it. Labels are positions in the row, (B, S), with weights
    (B, S) that are 0 at empty slots, as `keras_bert.data.squad(..., layout="packed")` gives them.

    Logits stay in float32 under a mixed policy, as the heads' do: float16 ends at 65,504.

    Call arguments:
        logits: float (B, T).
        padding_mask: int (B, T), k at the tokens of the row's k-th sequence, from 1.
        sequence_starts: int (B, S).

    Returns:
        float (B, S, T).
    """

    def __init__(self, dtype: Any = "float32", **kwargs: Any):
        super().__init__(dtype=dtype, **kwargs)

    def call(self, logits: Any, padding_mask: Any, sequence_starts: Any) -> Any:
        count = ops.shape(sequence_starts)[1]
        numbers = ops.arange(1, count + 1, dtype="int32")[None, :, None]
        inside = ops.equal(ops.cast(padding_mask, "int32")[:, None, :], numbers)
        return ops.where(inside, logits[:, None, :], ops.cast(OUTSIDE, logits.dtype))

    def compute_output_shape(
        self,
        logits_shape: tuple[int | None, ...],
        padding_mask_shape: tuple[int | None, ...],
        sequence_starts_shape: tuple[int | None, ...],
    ) -> tuple[int | None, ...]:
        return (*sequence_starts_shape, logits_shape[-1])
