"""The training step on JAX: one program over the global batch, sharded or not."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import keras

from keras_bert.training.micro_batches import num_micro_batches


class Loop:
    """JAX's steps of `keras_bert.training.Model`: functions of the state and a batch.

    A `keras.distribution` splits arrays over devices below the program, which sees whole
    batches: sums over the batch are already global.
    """

    def creating_variables(self) -> contextlib.AbstractContextManager[None]:
        """Where metrics and the optimizer make their variables: anywhere."""
        return contextlib.nullcontext()

    def take(self, optimizer: Any) -> None:
        """Nothing to prepare: the optimizer gets its gradients from one program."""

    def drawing(self, states: Any) -> contextlib.AbstractContextManager[None]:
        """Nothing to prepare: every layer draws by its own state."""
        return contextlib.nullcontext()

    def replicas(self) -> int:
        """Parts that a `keras.distribution` splits a batch into."""
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1
        mesh = distribution.device_mesh
        return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]

    def train_step(self: Any, state: Any, data: Any) -> tuple[Any, Any]:
        """One update: (state, batch) -> (metrics, state)."""
        trainable, non_trainable, optimizer_variables, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = (x, y, sample_weight)
        parts = num_micro_batches(x, self.accumulate)
        totals = self._objective.totals(y, sample_weight)

        def loss_of(trainable: Any, non_trainable: Any, metrics: Any, micro: Any) -> Any:
            x, y, sample_weight = part_of(batch, micro, parts)
            mapping = [
                *zip(self.trainable_variables, trainable, strict=True),
                *zip(self.non_trainable_variables, non_trainable, strict=True),
                *zip(self.optimizer.variables, optimizer_variables, strict=True),
                *zip(self.metrics_variables, metrics, strict=True),
            ]
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                self._draw_by_update(self.optimizer.iterations, 0, micro)
                y_pred = self(x, training=True)
                own = self._sum_of_own_losses()
                loss = self._loss_of_part(y, y_pred, sample_weight, own, totals, parts)
                loss = self.optimizer.scale_loss(loss)
                self.compute_metrics(x, y, y_pred, sample_weight)
            random = {id(state) for state in self._random_states}
            non_trainable = [
                value if id(variable) in random else current(scope, variable, value)
                for variable, value in zip(self.non_trainable_variables, non_trainable, strict=True)
            ]
            metrics = [
                current(scope, variable, value)
                for variable, value in zip(self.metrics_variables, metrics, strict=True)
            ]
            return loss, (non_trainable, metrics)

        gradient_of = jax.grad(loss_of, has_aux=True)

        def add(carried: Any, micro: Any) -> tuple[Any, None]:
            sums, non_trainable, metrics = carried
            gradients, (non_trainable, metrics) = gradient_of(
                trainable, non_trainable, metrics, micro
            )
            return (jax.tree.map(jax.numpy.add, sums, gradients), non_trainable, metrics), None

        if parts == 1:
            gradients, (non_trainable, metrics) = gradient_of(trainable, non_trainable, metrics, 0)
        else:
            zeros = jax.tree.map(jax.numpy.zeros_like, trainable)
            carried = (zeros, non_trainable, metrics)
            (gradients, non_trainable, metrics), _ = jax.lax.scan(
                add, carried, jax.numpy.arange(parts)
            )
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        return self._results(metrics), (trainable, non_trainable, optimizer_variables, metrics)

    def test_step(self: Any, state: Any, data: Any) -> tuple[Any, Any]:
        """Losses and metrics of a batch: (state, batch) -> (metrics, state)."""
        trainable, non_trainable, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        mapping = [
            *zip(self.trainable_variables, trainable, strict=True),
            *zip(self.non_trainable_variables, non_trainable, strict=True),
            *zip(self.metrics_variables, metrics, strict=True),
        ]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            y_pred = self(x, training=False)
            self._loss_of_part(y, y_pred, sample_weight, self._sum_of_own_losses())
            self.compute_metrics(x, y, y_pred, sample_weight)
        metrics = [
            current(scope, variable, value)
            for variable, value in zip(self.metrics_variables, metrics, strict=True)
        ]
        return self._results(metrics), (trainable, non_trainable, metrics)

    def _results(self: Any, metrics: Any) -> dict[str, Any]:
        mapping = zip(self.metrics_variables, metrics, strict=True)
        with keras.StatelessScope(mapping):
            return self.get_metrics_result()


def part_of(batch: Any, micro: Any, parts: int) -> Any:
    """The micro-batch of that number: every `parts`-th row, so that no device gives all."""
    if parts == 1:
        return batch

    def cut(x: Any) -> Any:
        x = jax.numpy.asarray(x)  # numpy's when the step runs eagerly
        return x.reshape(x.shape[0] // parts, parts, *x.shape[1:])[:, micro]

    return jax.tree.map(cut, batch)


def current(scope: Any, variable: keras.Variable, value: Any) -> Any:
    """The variable's value at the scope's end."""
    new = scope.get_current_value(variable)
    return value if new is None else new
