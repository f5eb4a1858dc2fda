"""The training step on torch: micro-batches one after another, then one update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import torch


class Loop:
    """torch's steps of `keras_bert.training.Model`."""

    def creating_variables(self) -> contextlib.AbstractContextManager[None]:
        """Where metrics and the optimizer make their variables: anywhere."""
        return contextlib.nullcontext()

    def take(self, optimizer: Any) -> None:
        """Nothing to prepare: the optimizer gets its gradients from one program."""

    def replicas(self) -> int:
        """Copies of the model that share a batch."""
        return 1

    def train_step(self: Any, data: Any) -> dict[str, Any]:
        """One update on a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        totals = self._objective.totals(y, sample_weight)
        parts = self.accumulate
        self.zero_grad()
        for micro in range(parts):
            part = part_of((x, y, sample_weight), micro, parts)
            if len(keras.tree.flatten(part[0])[0]) > 0:
                self._backward(*part, totals, micro)
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return self.get_metrics_result()

    def _backward(self: Any, x: Any, y: Any, sample_weight: Any, totals: Any, micro: int) -> None:
        """Adds a micro-batch's gradients to those that the weights hold."""
        with keras.StatelessScope(collect_losses=True, initialize_variables=False) as scope:
            self._draw_by_update(self.optimizer.iterations, 0, micro)
            with drawing_by(self._random_states):
                y_pred = self(x, training=True)
        # In the scope, Keras would look for regularized weights among the mapped variables.
        additional = self._sum_of_own_losses(scope.losses)
        random = {id(state) for state in self._random_states}
        for variable in self.non_trainable_variables:
            value = scope.get_current_value(variable)
            if value is not None and id(variable) not in random:
                variable.assign(value)
        loss = self.compute_loss(
            *(x, y, y_pred, sample_weight),
            totals=totals,
            parts=self.accumulate,
            additional=additional,
        )
        self.optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            self.compute_metrics(x, y, y_pred, sample_weight)

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        """Losses and metrics of a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        self.compute_loss(x, y, y_pred, sample_weight, training=False)
        return self.compute_metrics(x, y, y_pred, sample_weight)


@contextlib.contextmanager
def drawing_by(states: list[keras.Variable]) -> Iterator[None]:
    """Has torch's own generator, which Keras's dropout draws from, start at the first state."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices, enabled=bool(states)):
        if states:
            torch.manual_seed(int(states[0].value.sum()))
        yield


def part_of(batch: Any, micro: int, parts: int) -> Any:
    """The micro-batch of that number: the rows in order, the last part perhaps a short one."""

    def cut(x: Any) -> Any:
        if x is None:
            return None
        size = -(-len(x) // parts)
        return x[micro * size : (micro + 1) * size]

    return keras.tree.map_structure(cut, batch)
