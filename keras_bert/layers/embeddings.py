"""Tables of learned vectors: of ids, and of positions that start again with each sequence."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_bert.layers.attention import own_sequence
from keras_bert.layers.checks import has_row, nan_where_not
from keras_bert.layers.initializers import truncated_normal


@keras.saving.register_keras_serializable("keras_bert")
class CheckedEmbedding(keras.layers.ReversibleEmbedding):
    """Keras's embedding, in which an id without a row is never another id's vector.

    Keras alone reads the last row at -1; for an id beyond the table, compiled code reads the
    last row (XLA) or zeros (TensorFlow on a GPU), and training goes on with wrong words. Here
    such an id

    - raises where its value is known: in eager calls, and from TensorFlow's and torch's
      kernels on a CPU;
    - becomes a row of NaN in compiled code, which can't raise: the loss is NaN at once.

    Arguments, shapes and the tied decoder, `layer(x, reverse=True)`, are those of
    `keras.layers.ReversibleEmbedding`.

    Raises:
        ValueError: an id is outside [0, `input_dim`), in an eager call.
    """

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            return super().call(inputs, reverse=True)
        is_wide = keras.backend.standardize_dtype(inputs.dtype) in ("int32", "int64")
        ids = inputs if is_wide else ops.cast(inputs, "int32")
        found = has_row(ids, self.input_dim, self.name)
        # No backend shall count from the end; none has a row `input_dim`.
        rows = super().call(ops.where(ids < 0, self.input_dim, ids))
        return nan_where_not(found, rows)


@keras.saving.register_keras_serializable("keras_bert")
class PositionEmbedding(keras.layers.Layer):
    """Looks up a learned vector for each token's place in its own sequence.

    Args:
        max_sequence_length: Rows P of the table: no sequence may be longer.
        hidden_dim: Width D of a row.
        initializer_range: Standard deviation of the table at the start.

    Call arguments:
        token_ids: int (B, T); only its shape is read.
        padding_mask: int (B, T), as in `SelfAttention`. None: one sequence a row.

    Returns:
        float (B, T, D), or (1, T, D) without a mask.

    Raises:
        ValueError: T is known and greater than P. Where compiled code learns it too late, the
            positions beyond the table are NaN.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3 and figure 2.
    """

    def __init__(
        self,
        max_sequence_length: int,
        hidden_dim: int,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_sequence_length = max_sequence_length
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range

    def build(self, token_ids_shape: tuple[int | None, ...]) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_sequence_length, self.hidden_dim),
            initializer=truncated_normal(self.initializer_range),
        )

    def call(self, token_ids: Any, padding_mask: Any = None) -> Any:
        length = ops.shape(token_ids)[1]
        if isinstance(length, int) and length > self.max_sequence_length:
            raise ValueError(
                "A sequence must fit the table of positions. Received: "
                f"{length} tokens, max_sequence_length={self.max_sequence_length}."
            )
        table = ops.convert_to_tensor(self.embeddings)
        if padding_mask is None:
            return ops.slice(table, (0, 0), (length, self.hidden_dim))[None]
        positions = self.positions(padding_mask)
        rows = ops.take(table, positions, axis=0)
        return nan_where_not(positions < self.max_sequence_length, rows)

    def positions(self, padding_mask: Any) -> Any:
        """A token's place in its own sequence: int (B, T) -> int32 (B, T).

        That place is the number of tokens of the same sequence before it. Padding keeps its
        place in the row, as in the original code.
        """
        place = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
        before = ops.logical_and(own_sequence(padding_mask), place[:, None] > place[None, :])
        in_sequence = ops.sum(ops.cast(before, "int32"), axis=-1)
        return ops.where(padding_mask > 0, in_sequence, place[None])

    def compute_output_shape(
        self,
        token_ids_shape: tuple[int | None, ...],
        padding_mask_shape: tuple[int | None, ...] | None = None,
    ) -> tuple[int | None, ...]:
        batch = 1 if padding_mask_shape is None else token_ids_shape[0]
        return (batch, token_ids_shape[1], self.hidden_dim)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "max_sequence_length": self.max_sequence_length,
            "hidden_dim": self.hidden_dim,
            "initializer_range": self.initializer_range,
        }
