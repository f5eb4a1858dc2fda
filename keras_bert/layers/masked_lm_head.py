"""From an encoder's vectors back towards the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert.layers.activations import activation as get_activation
from keras_bert.layers.checks import has_row, nan_where_not
from keras_bert.layers.initializers import truncated_normal


@keras.saving.register_keras_serializable("keras_bert")
class MaskedLMHead(keras.layers.Layer):
    """Gathers the masked positions, then a dense layer, an activation and a layer norm.

    What comes out is compared with the rows of the token table. That table is the encoder's
    own (the tied decoder), so the product is a second call of the encoder's layer: the tie is
    in the data flow, where saving and loading can't lose it.

    ```python
    table = encoder.get_layer("token_embedding")
    x = MaskedLMHead(table.output_dim)(sequence_output, mask_positions)
    logits = OutputBias()(table(x, reverse=True))
    ```

    Args:
        hidden_dim: Width D of the output, that of the token table.
        activation: After the dense layer.
        norm_epsilon: Added to the variance in the layer norm.
        initializer_range: Standard deviation of the kernel at the start.

    Call arguments:
        x: float (B, T, D), the encoder's sequence output.
        mask_positions: int (B, M), the positions to predict. None: all of them.

    Returns:
        float (B, M, D), or (B, T, D).

    Raises:
        ValueError: a position is outside [0, T), in an eager call; in compiled code its vector
            is NaN.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1.
        - [Press and Wolf, 2016](https://arxiv.org/abs/1608.05859), on the tie.
    """

    def __init__(
        self,
        hidden_dim: int,
        activation: str | Callable[[Any], Any] = "gelu",
        norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.activation = get_activation(activation)
        self.norm_epsilon = norm_epsilon
        self.initializer_range = initializer_range
        self.dense = keras.layers.Dense(
            hidden_dim,
            kernel_initializer=truncated_normal(initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=norm_epsilon, dtype=self.dtype_policy, name="norm"
        )

    def build(
        self,
        x_shape: tuple[int | None, ...],
        mask_positions_shape: tuple[int | None, ...] | None = None,
    ) -> None:
        self.dense.build(x_shape)
        self.norm.build((*x_shape[:-1], self.hidden_dim))

    def call(self, x: Any, mask_positions: Any = None) -> Any:
        if mask_positions is not None:
            found = has_row(mask_positions, ops.shape(x)[1], "the sequence")
            places = ops.where(found, mask_positions, 0)
            x = ops.take_along_axis(x, places[:, :, None], axis=1)  # (B, M, D)
            x = nan_where_not(found, x)
        return self.norm(self.activation(self.dense(x)))

    def compute_output_shape(
        self,
        x_shape: tuple[int | None, ...],
        mask_positions_shape: tuple[int | None, ...] | None = None,
    ) -> tuple[int | None, ...]:
        return (*(mask_positions_shape or x_shape[:-1]), self.hidden_dim)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "activation": keras.activations.serialize(self.activation),
            "norm_epsilon": self.norm_epsilon,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable("keras_bert")
class OutputBias(keras.layers.Layer):
    """Adds one learned number to each class: float (..., V) -> float (..., V)."""

    def build(self, x_shape: tuple[int | None, ...]) -> None:
        self.bias = self.add_weight(name="bias", shape=(x_shape[-1],), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x + self.bias

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return x_shape
