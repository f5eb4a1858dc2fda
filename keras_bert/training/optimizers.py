"""AdamW as the paper used it, with epsilon where Kingma and Ba put it, and LAMB."""

from __future__ import annotations

import importlib
import math
import re
import types
from typing import Any

import keras
from keras import ops

# TensorFlow runs a pass over memory for every small operation; the others fuse them.
KERNEL: Any = None
if keras.backend.backend() == "tensorflow":
    KERNEL = importlib.import_module("keras_bert.training.tensorflow_adam")

# The last part of a weight's path: biases, and the scale and shift of every layer norm.
NOT_DECAYED = ("bias", "gamma", "beta")
# Where a weight lies in the stack, by the first part of its path.
EMBEDDINGS = re.compile(r"(^|/)(token|segment|position)_embedding/|(^|/)embedding_norm/")
BLOCK = re.compile(r"(?:^|/)block_(\d+)/")


@keras.saving.register_keras_serializable("keras_bert")
class AdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, for pretraining and fine-tuning BERT.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    w = w - rate * (m' / (sqrt(v') + epsilon) + decay * w), with m' = m / (1 - b1^t) and
    v' = v / (1 - b2^t). Keras's own AdamW adds epsilon before that correction: at the paper's
    1e-6 its first updates are a third of these.

    Biases and layer norms aren't decayed, by the last part of their path. The gradient is
    clipped by its global norm. With `use_ema=True`, as with Keras's own, a moving average of
    the weights takes their place at the end of `fit`, and every `ema_overwrite_frequency`
    updates; `keras.callbacks.SwapEMAWeights` evaluates with it in between.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Of the kernels and tables, times the rate.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second.
        epsilon: Added to the root of the second moment.
        bias_correction: Whether m' and v' are as above; False: m' = m and v' = v, as in
            Google's BERT, whose first updates are three to six times as large.
        layer_decay: What the rate is multiplied by for each step down the stack: heads and
            pooler learn at the full rate, the top block at `layer_decay` times that, the one
            below at its square, and the embeddings below `block_0` slowest. 1 is one rate for
            all.
        global_clipnorm: Greatest norm of all gradients together; None: they aren't clipped.
        name: The optimizer's name.
        **kwargs: Other arguments of `keras.optimizers.Optimizer`, such as `use_ema`.

    Raises:
        ValueError: `layer_decay` isn't in (0, 1], or, on building, is less than 1 and no
            weight lies in a `block_0` or an embedding.

    References:
        - [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), algorithm 1.
        - [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101), algorithm 2.
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), appendix A.2.
        - `bias_correction=False`: `AdamWeightDecayOptimizer` of
          [google-research/bert](https://github.com/google-research/bert), optimization.py.
        - `layer_decay`: [Sun et al., 2019](https://arxiv.org/abs/1905.05583), section 5.3.2.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        layer_decay: float = 1.0,
        global_clipnorm: float | None = 1.0,
        name: str = "adamw",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )
        if not 0 < layer_decay <= 1:
            raise ValueError(
                "`layer_decay` must be greater than 0 and at most 1. Received: "
                f"layer_decay={layer_decay}."
            )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self._betas = [KERNEL.rounded(each) if KERNEL else each for each in (beta_1, beta_2)]
        # Of the update that's being made; in an object, as TensorFlow tracks lists and tuples.
        self._update = types.SimpleNamespace(corrections=None)
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.layer_decay = layer_decay

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        # By index: TensorFlow's updates are handed its own variables, whose names aren't paths.
        paths = [variable.path for variable in variables]
        self._decayed = [path.rsplit("/", 1)[-1] not in NOT_DECAYED for path in paths]
        self._rate_factors = rate_factors(paths, self.layer_decay)

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
        # Once for all variables: they would be half of what's traced.
        self._update.corrections = self._corrections()
        try:
            super().apply(dense, trainable_variables)
        finally:
            self._update.corrections = None

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = self._rate(variable, learning_rate)
        if KERNEL is None or keras.backend.standardize_dtype(variable.dtype) != "float32":
            gradient = gradient if KERNEL is None else KERNEL.multiplied(gradient)
            self.assign_sub(variable, rate * self._direction(gradient, variable))
            return
        index = self._get_variable_index(variable)
        KERNEL.adam_update(
            variable,
            (self._momentums[index], self._velocities[index]),
            gradient,
            rate,
            self._update.corrections or self._corrections(),
            betas=self._betas,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay if self._is_decayed(variable) else 0.0,
        )

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if KERNEL is None or self.clipnorm or not self.global_clipnorm:
            return super()._clip_gradients(grads)
        # Other replicas' gradients may be still to be added, and an update of a subclass's own
        # gets tensors.
        is_alone = self._distribution_strategy.num_replicas_in_sync == 1
        late = is_alone and type(self).update_step is AdamW.update_step
        return KERNEL.clipped(grads, self.global_clipnorm, late=late)

    def _rate(self, variable: Any, learning_rate: Any) -> Any:
        factor = self._rate_factors[self._get_variable_index(variable)]
        return ops.cast(learning_rate, variable.dtype) * factor

    def _direction(self, gradient: Any, variable: Any) -> Any:
        """Where the weight is to go, per unit of the rate; updates the moments."""
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        beta_1, beta_2 = self._betas
        self.assign_add(m, (gradient - m) * (1 - beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - beta_2))

        corrections = self._update.corrections or self._corrections()
        c1, c2 = (ops.cast(each, variable.dtype) for each in corrections)
        direction = (m / c1) / (ops.sqrt(v / c2) + self.epsilon)
        if self._is_decayed(variable):
            direction = direction + self.weight_decay * variable
        return direction

    def _corrections(self) -> tuple[Any, Any]:
        """What the two moments are divided by."""
        beta_1, beta_2 = self._betas
        return self._correction(beta_1), self._correction(beta_2)

    def _correction(self, beta: float) -> Any:
        """1 - beta^t, without the digits that subtracting from 1 in float32 would lose."""
        if not self.bias_correction or beta == 0:
            return ops.ones((), "float32")
        return -ops.expm1(ops.cast(self.iterations + 1, "float32") * math.log(beta))

    def _use_weight_decay(self, variable: Any) -> bool:
        index = self._get_variable_index(variable)
        known = self._trainable_variables[index]
        return self._decayed[index] and super()._use_weight_decay(known)

    def _is_decayed(self, variable: Any) -> bool:
        return bool(self.weight_decay) and self._use_weight_decay(variable)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Keras's decay before the update; ours is a part of it, at the weight's own rate."""

    def _overwrite_model_variables_with_average_value(self, trainable_variables: list[Any]) -> None:
        # Keras's goes through the strategy, which it can't inside the condition it's called in.
        for variable, average in zip(
            trainable_variables, self._model_variables_moving_average, strict=True
        ):
            variable.assign(average)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "layer_decay": self.layer_decay,
        }


@keras.saving.register_keras_serializable("keras_bert")
class Lamb(AdamW):
    """LAMB: AdamW for very large batches, whose step is scaled by each weight's own norm.

    With AdamW's u = m' / (sqrt(v') + epsilon) + decay * w: w = w - rate * |w| / |u| * u, and
    the factor is 1 where either norm is 0. This is the algorithm as published in 2020, with
    bias correction, and phi the identity. Biases and layer norms are neither decayed nor
    scaled, as in the reference implementation, `lamb_optimizer.py` of google-research/albert;
    `bias_correction=False` gives its updates.

    The arguments are those of `AdamW`.

    References:
        - [You et al., 2020](https://arxiv.org/abs/1904.00962v5), algorithm 2.
    """

    def __init__(self, learning_rate: Any = 1e-3, *, name: str = "lamb", **kwargs: Any) -> None:
        super().__init__(learning_rate, name=name, **kwargs)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        direction = self._direction(gradient, variable)
        rate = self._rate(variable, learning_rate)
        if self._use_weight_decay(variable):
            rate = rate * trust_ratio(variable, direction)
        self.assign_sub(variable, rate * direction)


def trust_ratio(variable: Any, direction: Any) -> Any:
    """|w| / |u|, or 1 where either is 0."""
    of_weight = ops.sqrt(ops.sum(ops.square(variable)))
    of_step = ops.sqrt(ops.sum(ops.square(direction)))
    both = ops.logical_and(of_weight > 0, of_step > 0)
    return ops.where(both, of_weight / ops.where(both, of_step, 1.0), 1.0)


def rate_factors(paths: list[str], layer_decay: float) -> list[float]:
    """What each weight's rate is multiplied by: layer_decay^(depth from the top).

    The depth is 0 above the blocks, 1 in the top block, and one more than `block_0`'s in the
    embeddings.
    """
    if layer_decay == 1:
        return [1.0] * len(paths)
    blocks = [BLOCK.search(path) for path in paths]
    num_blocks = 1 + max((int(block[1]) for block in blocks if block), default=-1)
    depths = []
    for path, block in zip(paths, blocks, strict=True):
        if block:
            depths.append(num_blocks - int(block[1]))
        else:
            depths.append(num_blocks + 1 if EMBEDDINGS.search(path) else 0)
    if not any(depths):
        raise ValueError(
            "`layer_decay` must be 1 for weights none of which lies in a `block_0` or an "
            f"embedding. Received: layer_decay={layer_decay}, first weight {paths[0]!r}."
        )
    return [layer_decay**depth for depth in depths]
