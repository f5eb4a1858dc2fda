"""AdamW as the paper used it, with epsilon where Kingma and Ba put it."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

# The last part of a weight's path: biases, and the scale and shift of every layer norm.
NOT_DECAYED = ("bias", "gamma", "beta")


@keras.saving.register_keras_serializable("keras_bert")
class AdamW(keras.optimizers.AdamW):
    """Adam with decoupled weight decay, for pretraining and fine-tuning BERT.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    w = w - rate * decay * w - rate * m' / (sqrt(v') + epsilon), with m' = m / (1 - b1^t) and
    v' = v / (1 - b2^t). Keras's own AdamW adds epsilon before that correction: at the paper's
    1e-6 its first updates are a third of these.

    Weights are decayed, except biases and layer norms. The gradient is clipped by its global
    norm, to 1.0.

    References:
        - [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), algorithm 1.
        - [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101), algorithm 2.
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), appendix A.2.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        global_clipnorm: float | None = 1.0,
        name: str = "adamw",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )

    def apply(self, grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
        # TensorFlow hands an embedding's gradient over as one row a token. Their norm isn't
        # that of the gradient as long as rows of the same token haven't been summed, which
        # `reshape` does: it has no sparse form.
        variables = self._trainable_variables
        if trainable_variables is not None:
            variables = trainable_variables
        dense = [
            None if gradient is None else ops.reshape(gradient, variable.shape)
            for gradient, variable in zip(grads, variables, strict=True)
        ]
        super().apply(dense, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))

        step = ops.cast(self.iterations + 1, variable.dtype)
        corrected_m = m / one_minus_power(self.beta_1, step)
        corrected_v = v / one_minus_power(self.beta_2, step)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * corrected_m / (ops.sqrt(corrected_v) + self.epsilon))

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self._decayed = [
            variable.path.rsplit("/", 1)[-1] not in NOT_DECAYED for variable in variables
        ]

    def _use_weight_decay(self, variable: Any) -> bool:
        # By index: TensorFlow asks with its own variable, whose name isn't the path.
        decayed = self._decayed[self._get_variable_index(variable)]
        return decayed and super()._use_weight_decay(variable)


def one_minus_power(beta: float, step: Any) -> Any:
    """1 - beta^step, without the digits that subtracting from 1 in float32 would lose."""
    return -ops.expm1(step * math.log(beta)) if beta > 0 else 1.0
