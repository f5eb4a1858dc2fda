"""The functional model that tasks return: Keras's own, with losses that are weighted means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_bert")
class Model(keras.Model):
    """A functional `keras.Model` whose every loss is a weighted mean over the batch.

    sum(weights * losses) / sum(weights): a position with weight 0 counts in neither sum.
    Keras divides by the number of positions instead, so that its masked-LM loss shrinks with
    the padding. The total loss is the plain sum of the outputs' means.

    Use it for your own head on our encoder:

    ```python
    x = keras.layers.Dense(5, name="stars")(encoder.output["pooled_output"])
    model = keras_bert.training.Model(encoder.input, {"stars": x})
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ```

    `segment_ids` and `padding_mask` may be left out of the inputs, or be None: zeros and ones.

    What `fit` and `evaluate` show for an epoch is Keras's mean of the batches' losses, weighted
    by their rows; the updates are exact.
    """

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *,
        jit_compile: bool | str = "auto",
        **kwargs: Any,
    ) -> None:
        """Keras's `compile`; a loss whose reduction is a mean becomes a weighted mean."""
        # On a CPU, TensorFlow's own kernels train BERT faster than XLA's and start at once.
        on_tensorflow = keras.backend.backend() == "tensorflow"
        if jit_compile == "auto" and on_tensorflow and not keras.distribution.list_devices("gpu"):
            jit_compile = False
        losses = keras.tree.map_structure(weighted_mean, loss)
        super().compile(optimizer, loss=losses, jit_compile=jit_compile, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles again what `save` stored; Keras asks for it beside an own `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    # Keras checks the inputs' names in `__call__`, and JAX's loop goes straight to `call`.
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self._with_defaults(inputs), *args, **kwargs)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().call(self._with_defaults(inputs), *args, **kwargs)

    def _with_defaults(self, inputs: Any) -> Any:
        if not isinstance(inputs, dict) or inputs.get("token_ids") is None:
            return inputs
        if all(inputs.get(name) is not None for name in self._inputs_struct):
            return inputs
        filled = {
            name: value if isinstance(value, keras.KerasTensor) else ops.convert_to_tensor(value)
            for name, value in inputs.items()
            if value is not None
        }
        for name, like in (("segment_ids", ops.zeros_like), ("padding_mask", ops.ones_like)):
            if name in self._inputs_struct and name not in filled:
                filled[name] = like(filled["token_ids"])
        return filled


def weighted_mean(loss: Any) -> Any:
    """Wraps a Keras loss (an object, its name or a function) whose reduction is a mean."""
    if loss is None or isinstance(loss, WeightedMean):
        return loss
    loss = keras.losses.get(loss)
    # An object that sums, or doesn't reduce at all, is what the user asked for.
    means = ("mean", "sum_over_batch_size", "mean_with_sample_weight")
    return WeightedMean(loss) if getattr(loss, "reduction", "mean") in means else loss


@keras.saving.register_keras_serializable("keras_bert")
class WeightedMean(keras.losses.Loss):
    """sum(weights * losses) / sum(weights) of another loss's values; 0 if no weight is above 0.

    Args:
        loss: A `keras.losses.Loss` or a function of (y_true, y_pred), one value an element.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], name: str | None = None) -> None:
        name = name or getattr(loss, "name", None) or loss.__name__
        super().__init__(name=name, reduction="mean_with_sample_weight")
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true = ops.convert_to_tensor(y_true, self.dtype)
        y_pred = ops.convert_to_tensor(y_pred, self.dtype)
        if isinstance(self.loss, keras.losses.Loss):
            values = self.loss.call(y_true, y_pred)
        else:
            # Keras aligns labels (B,) and predictions (B, 1) for a function as well.
            if y_pred.shape[-1] == 1 or len(y_true.shape) > len(y_pred.shape):
                y_true = with_rank_of(y_pred, y_true)
            values = self.loss(y_true, y_pred)
        if sample_weight is not None:
            weights = ops.convert_to_tensor(sample_weight, self.dtype)
            # A weight for a whole row counts for each of its elements.
            weights = ops.broadcast_to(with_rank_of(values, weights), ops.shape(values))
            return super().__call__(values, values, weights)
        return super().__call__(values, values)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred  # `__call__` has computed the values; Keras weighs and sums them.

    def get_config(self) -> dict[str, Any]:
        return {"loss": keras.losses.serialize(self.loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightedMean:
        return cls(keras.losses.deserialize(config["loss"]), config["name"])


def with_rank_of(like: Any, x: Any) -> Any:
    """Adds last axes of size 1 to `x`, or takes one away, until its rank is that of `like`."""
    if len(x.shape) == len(like.shape) + 1 and x.shape[-1] == 1:
        return ops.squeeze(x, axis=-1)
    while len(x.shape) < len(like.shape):
        x = x[..., None]
    return x
