"""One vector for a whole sequence."""

from __future__ import annotations

from typing import Any

import keras

from keras_bert.layers.initializers import truncated_normal


@keras.saving.register_keras_serializable("keras_bert")
class Pooler(keras.layers.Layer):
    """tanh(W x + b) of the vector at [CLS], the first position.

    Args:
        hidden_dim: Width D of the output.
        initializer_range: Standard deviation of the kernel at the start.

    Call arguments:
        x: float (B, T, D), the encoder's sequence output.

    Returns:
        float (B, D).

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.
    """

    def __init__(self, hidden_dim: int, initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range

    def build(self, x_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(x_shape[-1], self.hidden_dim),
            initializer=truncated_normal(self.initializer_range),
        )
        self.bias = self.add_weight(name="bias", shape=(self.hidden_dim,), initializer="zeros")

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(keras.ops.matmul(x[:, 0], self.kernel) + self.bias)

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (x_shape[0], self.hidden_dim)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "initializer_range": self.initializer_range,
        }
