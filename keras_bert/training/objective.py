"""What `fit` minimises: for every output a weighted mean over the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops


class Objective:
    """The losses of a model's outputs, as sums that add up over replicas and micro-batches.

    An output's loss is sum(weights * losses) / sum(weights), both sums taken over the whole
    global batch; the total is the plain sum of the outputs' losses (times their factors).
    The denominators are known from the data alone, before any prediction: a part of the
    batch, divided by the denominator of the whole, is a term of a sum.

    A loss object whose reduction is "sum" or None is summed, as its user asked for; labels of a
    loss's `ignore_class` have weight 0.

    Args:
        names: Names of the model's outputs, in order.
        loss: A Keras loss (an object, its name, a function) for every output, or a dict or
            list of them; None leaves an output out.
        loss_weights: A factor for each output's loss, in the same form; None: 1.

    Attributes:
        means: Output's name -> `keras.metrics.Mean` of its loss, exact over many batches.
        additional: The mean of the layers' own losses, such as regularizers'.
    """

    def __init__(self, names: list[str], loss: Any, loss_weights: Any = None) -> None:
        self.names = names
        self.losses = {
            name: keras.losses.get(each)
            for name, each in self._by_name(loss, "loss", spread=True).items()
            if each is not None
        }
        factors = self._by_name(loss_weights, "loss_weights", spread=True)
        self.factors = {
            name: 1.0 if factors[name] is None else factors[name] for name in self.losses
        }
        self.means = {name: keras.metrics.Mean(name=f"{name}_loss") for name in self.losses}
        self.additional = keras.metrics.Mean(name="losses of layers")  # no output's name

    def totals(self, y: Any, sample_weight: Any) -> dict[str, Any]:
        """Every output's sum of weights, scalars; rows count 1 where there are none."""
        targets = self._targets(y, sample_weight)
        return {name: sum_of_weights(*target) for name, target in targets.items()}

    def __call__(
        self, y: Any, y_pred: Any, sample_weight: Any, totals: Any = None, parts: int = 1
    ) -> Any:
        """The loss of one part of a global batch: the parts' losses add up to the batch's.

        Args:
            y: Labels, in the form of the outputs; a single array where there's one output.
            y_pred: The model's outputs.
            sample_weight: An array for all outputs, or a dict or list of them, or None.
            totals: `totals()` of the whole batch; None: this part is the whole.
            parts: How many parts the batch has, which a loss that sums needs for its mean.

        Returns:
            A scalar. `means` are updated.
        """
        totals = self.totals(y, sample_weight) if totals is None else totals
        targets = self._targets(y, sample_weight)
        outputs = self._by_name(y_pred, "y_pred", spread=True)
        loss = ops.zeros((), keras.config.floatx())
        for name, each in self.losses.items():
            label, weight = targets[name]
            if getattr(each, "reduction", "mean") in ("sum", "none", None):
                value = ops.sum(each(label, outputs[name], weight))
                # The mean over updates, each of which counts once for all its parts.
                self.means[name].update_state(ops.stop_gradient(value) * parts, 1 / parts)
            else:
                summed = weighted_sum(each, label, outputs[name], weight)
                value = ops.divide_no_nan(summed, totals[name])
                own = sum_of_weights(label, weight)
                mean = ops.divide_no_nan(ops.stop_gradient(summed), own)
                self.means[name].update_state(mean, sample_weight=own)
            loss = loss + self.factors[name] * value
        return loss

    def _targets(self, y: Any, sample_weight: Any) -> dict[str, tuple[Any, Any]]:
        """Output's name -> its labels and weights, for those that have a loss."""
        if not self.losses:
            return {}
        labels = self._by_name(y, "y")
        weights = self._by_name(sample_weight, "sample_weight", spread=True)
        return {
            name: (required(labels, name), without_ignored(each, labels[name], weights[name]))
            for name, each in self.losses.items()
        }

    def result(self) -> Any:
        """The loss over all that has been seen since the means were reset."""
        means = (self.factors[name] * mean.result() for name, mean in self.means.items())
        return sum(means, self.additional.result())

    def _by_name(self, values: Any, argument: str, spread: bool = False) -> dict[str, Any]:
        """`values` under the outputs' names; a single one for each output, if it may `spread`."""
        if isinstance(values, Mapping):
            unknown = sorted(set(values) - set(self.names))
            if unknown and argument in ("loss", "loss_weights"):
                raise ValueError(
                    f"`{argument}` must have keys out of {self.names}. Received: {unknown}."
                )
            return {name: values.get(name) for name in self.names}
        if isinstance(values, (list, tuple)):
            if len(values) != len(self.names):
                raise ValueError(
                    f"`{argument}` must have an entry for each of {self.names}. "
                    f"Received: {len(values)} entries."
                )
            return dict(zip(self.names, values, strict=True))
        if len(self.names) == 1 or spread:
            return dict.fromkeys(self.names, values)
        raise ValueError(f"`{argument}` must be a dict with the keys {self.names}.")


def required(labels: dict[str, Any], name: str) -> Any:
    """The output's labels, which must be there."""
    if labels[name] is None:
        raise ValueError(
            f"`y` must have labels for the output {name!r}, or `loss` None for it. "
            f"Received: {[key for key, value in labels.items() if value is not None]}."
        )
    return labels[name]


def without_ignored(loss: Any, label: Any, weight: Any) -> Any:
    """The weights, 0 at labels of the loss's `ignore_class`, if it has one."""
    ignored = getattr(loss, "ignore_class", None)
    if ignored is None:
        return weight
    kept = ops.cast(ops.not_equal(label, ignored), keras.config.floatx())
    return kept if weight is None else kept * with_rank_of(kept, ops.cast(weight, kept.dtype))


def sum_of_weights(label: Any, weight: Any) -> Any:
    """Sum of the weights as given; the number of rows where there are none."""
    if weight is None:
        return ops.cast(ops.shape(label)[0], keras.config.floatx())
    return ops.sum(ops.cast(weight, keras.config.floatx()))


def weighted_sum(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """sum(weights * values) of a loss; a weight of a row stands for the mean of its elements.

    Args:
        loss: A `keras.losses.Loss` or a function of (y_true, y_pred).
        y_true: Labels, (B, ...).
        y_pred: Predictions, (B, ...).
        sample_weight: One weight a row, or an element; None: 1.
    """
    dtype = keras.config.floatx()
    y_true, y_pred = ops.cast(y_true, dtype), ops.cast(y_pred, dtype)
    if isinstance(loss, keras.losses.Loss):
        values = loss.call(y_true, y_pred)
    else:
        # Keras aligns labels (B,) and predictions (B, 1) for a function as well.
        if y_pred.shape[-1] == 1 or len(y_true.shape) > len(y_pred.shape):
            y_true = with_rank_of(y_pred, y_true)
        values = loss(y_true, y_pred)
    if len(values.shape) == 0:
        return values * sum_of_weights(y_true, sample_weight)  # it has taken the mean itself
    if sample_weight is None:
        weights = ops.ones((1,) * len(values.shape), dtype)
    else:
        weights = with_rank_of(values, ops.cast(sample_weight, dtype))
    # Elements that share a weight count as one: their mean.
    sharing = 1
    for axis in range(1, len(values.shape)):
        if weights.shape[axis] == 1:
            sharing = sharing * ops.shape(values)[axis]
    return ops.sum(values * weights) / ops.cast(sharing, dtype)


def with_rank_of(like: Any, x: Any) -> Any:
    """Adds last axes of size 1 to `x`, or takes one away, until its rank is that of `like`."""
    if len(x.shape) == len(like.shape) + 1 and x.shape[-1] == 1:
        return ops.squeeze(x, axis=-1)
    while len(x.shape) < len(like.shape):
        x = x[..., None]
    return x
