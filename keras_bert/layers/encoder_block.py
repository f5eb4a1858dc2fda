"""The Transformer encoder block that BERT and its relatives stack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert.layers.activations import activation as get_activation
from keras_bert.layers.activations import in_training
from keras_bert.layers.attention import SelfAttention
from keras_bert.layers.dropout import Dropout
from keras_bert.layers.initializers import truncated_normal
from keras_bert.layers.recompute import recomputed


@keras.saving.register_keras_serializable("keras_bert")
class EncoderBlock(keras.layers.Layer):
    """Self-attention, then a feed-forward network, each in a post-LN residual.

    "Post-LN" is the paper's order: `x = norm(x + sublayer(x))`.

    Args:
        hidden_dim: Width D of the input and the output; a multiple of `num_heads`.
        num_heads: Attention heads N, each D / N wide.
        intermediate_dim: Width F between the two feed-forward projections.
        activation: Between those projections. `"gelu"` is the exact erf form.
        dropout: Rate on each sublayer's output, before it is added.
        attention_dropout: Rate on the attention probabilities.
        norm_epsilon: Added to the variance in both layer norms.
        initializer_range: Standard deviation of every kernel at the start.

    Call arguments:
        x: float (B, T, D).
        padding_mask: int (B, T), 0 at padding and k > 0 at tokens of the row's k-th
            sequence. None: every position is a token of one sequence.

    Returns:
        float (B, T, D).

    Attributes:
        recompute: Whether training keeps only the block's input for the backward pass and
            computes the rest again there: less memory, a third more time, the same numbers.
            False unless set, before the training step is compiled; it isn't saved.

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        activation: str | Callable[[Any], Any] = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # a mask of Keras's passes through; `padding_mask` counts
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.activation = get_activation(activation)
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.norm_epsilon = norm_epsilon
        self.initializer_range = initializer_range
        self.recompute = False

        self.attention = self.make_attention()
        self.attention_norm = self._norm("attention_norm")
        self.intermediate = self._dense("intermediate", intermediate_dim)
        self.projection = self._dense("projection", hidden_dim)
        self.output_norm = self._norm("output_norm")
        self.residual_dropout = Dropout(dropout, dtype=self.dtype_policy)

    def make_attention(self) -> keras.layers.Layer:
        """The one seam: a variant with its own attention overrides this."""
        return SelfAttention(
            self.hidden_dim,
            self.num_heads,
            self.attention_dropout,
            self.initializer_range,
            dtype=self.dtype_policy,
            name="attention",
        )

    def build(self, x_shape: tuple[int | None, ...]) -> None:
        for layer in (self.attention, self.attention_norm, self.intermediate, self.output_norm):
            layer.build(x_shape)
        self.projection.build((*x_shape[:-1], self.intermediate_dim))

    def call(self, x: Any, padding_mask: Any = None, training: bool | None = None) -> Any:
        if self.recompute and training:
            return recomputed(
                self, functools.partial(self._forward, training=True), x, padding_mask
            )
        return self._forward(x, padding_mask, training)

    def _forward(self, x: Any, padding_mask: Any, training: bool | None) -> Any:
        y = self.attention(x, padding_mask=padding_mask, training=training)
        x = self.attention_norm(x + self.residual_dropout(y, training=training))

        # As one matrix: TensorFlow fuses a product of two matrices with its bias and activation.
        y = ops.reshape(x, (-1, self.hidden_dim))  # (B T, D)
        activation = in_training(self.activation) if training else self.activation
        y = activation(self.intermediate(y))  # (B T, F)
        y = ops.reshape(self.projection(y), ops.shape(x))  # (B, T, D)
        return self.output_norm(x + self.residual_dropout(y, training=training))

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return x_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "norm_epsilon": self.norm_epsilon,
            "initializer_range": self.initializer_range,
        }

    def _dense(self, name: str, units: int) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )
