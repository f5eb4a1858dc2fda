"""Multi-head self-attention in which a token sees its own sequence and nothing else."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_bert.layers.dropout import Dropout
from keras_bert.layers.initializers import truncated_normal


@keras.saving.register_keras_serializable("keras_bert")
class SelfAttention(keras.layers.Layer):
    """Scaled dot-product attention over N heads, then a projection back to D.

    Args:
        hidden_dim: Width D of the input and the output; a multiple of `num_heads`.
        num_heads: Attention heads N, each H = D / N wide.
        dropout: Rate on the attention probabilities.
        initializer_range: Standard deviation of every kernel at the start.

    Call arguments:
        x: float (B, T, D).
        padding_mask: int (B, T), 0 at padding and k > 0 at tokens of the row's k-th sequence;
            the usual 0/1 mask is the case of one sequence a row. None: every position is a
            token of one sequence.

    Returns:
        float (B, T, D).

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if hidden_dim % num_heads:
            raise ValueError(
                "`hidden_dim` must be a multiple of `num_heads`. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
            )
        self.supports_masking = True  # a mask of Keras's passes through; `padding_mask` counts
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.initializer_range = initializer_range

        def dense(name: str) -> keras.layers.Dense:
            return keras.layers.Dense(
                hidden_dim,
                kernel_initializer=truncated_normal(initializer_range),
                dtype=self.dtype_policy,
                name=name,
            )

        self.query = dense("query")
        self.key = dense("key")
        self.value = dense("value")
        self.projection = dense("projection")
        self.probability_dropout = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape: tuple[int | None, ...]) -> None:
        for layer in (self.query, self.key, self.value, self.projection):
            layer.build(x_shape)

    def call(self, x: Any, padding_mask: Any = None, training: bool | None = None) -> Any:
        probabilities = self.probabilities(x, padding_mask)  # (B, N, T, T)
        probabilities = self.probability_dropout(probabilities, training=training)
        value = ops.transpose(self._heads(self.value, x), (0, 2, 1, 3))  # (B, N, T, H)
        mixed = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))  # (B, T, N, H)
        mixed = self.projection(ops.reshape(mixed, (-1, self.hidden_dim)))  # (B T, D)
        return ops.reshape(mixed, ops.shape(x))

    def scores(self, x: Any) -> Any:
        """Computes q k^T / sqrt(H) of every pair of positions: float (B, N, T, T)."""
        scale = 1 / math.sqrt(self.hidden_dim // self.num_heads)
        query = ops.transpose(scale * self._heads(self.query, x), (0, 2, 1, 3))  # (B, N, T, H)
        key = ops.transpose(self._heads(self.key, x), (0, 2, 3, 1))  # (B, N, H, T)
        return ops.matmul(query, key)

    def probabilities(self, x: Any, padding_mask: Any = None) -> Any:
        """The attention map: float (B, N, T, T), each row over the keys sums to 1."""
        # In float32 under every policy: a mean of values needs more digits than float16 has,
        # and -1e9 isn't a float16.
        scores = ops.cast(self.scores(x), "float32")
        if padding_mask is not None:
            # A finite number, since a row of -inf alone would become NaN.
            hidden = ops.cast(own_sequence(padding_mask), "float32") - 1.0  # 0 or -1
            scores = scores + (1e9 * hidden)[:, None]
        return ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)

    def _heads(self, dense: keras.layers.Dense, x: Any) -> Any:
        """Applies a projection and cuts it into heads: float (B, T, D) -> (B, T, N, H)."""
        batch, length, _ = ops.shape(x)
        rows = dense(ops.reshape(x, (-1, self.hidden_dim)))  # (B T, D), as in `EncoderBlock`
        head_dim = self.hidden_dim // self.num_heads  # -1 has no answer for a batch of no row
        return ops.reshape(rows, (batch, length, self.num_heads, head_dim))

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return x_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "initializer_range": self.initializer_range,
        }


def own_sequence(padding_mask: Any) -> Any:
    """True where a query (row) may look at a key (column): int (B, T) -> bool (B, T, T).

    A token sees the tokens of its own sequence. Padding has to look somewhere and looks at
    the first sequence, as in the original code; nobody looks at padding.
    """
    query = ops.maximum(padding_mask, 1)
    return ops.equal(query[:, :, None], padding_mask[:, None, :])
