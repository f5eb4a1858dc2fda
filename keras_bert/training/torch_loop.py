"""The training step on torch: micro-batches one after another, then one update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import torch

from keras_bert.training.micro_batches import num_micro_batches


class Loop:
    """torch's steps of `keras_bert.training.Model`."""

    def creating_variables(self) -> contextlib.AbstractContextManager[None]:
        """Where metrics and the optimizer make their variables: anywhere."""
        return contextlib.nullcontext()

    def take(self, optimizer: Any) -> None:
        """Nothing to prepare: the optimizer gets its gradients from one program."""

    @contextlib.contextmanager
    def drawing(self, states: list[keras.Variable]) -> Iterator[None]:
        """Has torch's one generator, which Keras's dropout draws from, start at the first state."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices, enabled=bool(states)):
            if states:
                seed, count = (int(word) for word in states[0].value)
                # On a CPU the generator takes 32 bits: odd factors keep (seed, count) apart.
                torch.manual_seed((seed * 0x9E3779B1 + count * 0x85EBCA77) & 0xFFFFFFFF)
            yield

    def replicas(self) -> int:
        """Copies of the model that share a batch."""
        return 1

    def train_step(self: Any, data: Any) -> dict[str, Any]:
        """One update on a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        totals = self._objective.totals(y, sample_weight)
        parts = num_micro_batches(x, self.accumulate)
        self.zero_grad()
        for micro in range(parts):
            self._backward(part_of((x, y, sample_weight), micro, parts), totals, micro, parts)
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([gradient_of(weight) for weight in weights], weights)
        return self.get_metrics_result()

    def _backward(self: Any, part: Any, totals: Any, micro: int, parts: int) -> None:
        """Adds a micro-batch's gradients to those that the weights hold."""
        x, y, sample_weight = part
        y_pred, additional = self._forward(x, 0, micro)
        loss = self._loss_of_part(y, y_pred, sample_weight, additional, totals, parts)
        self.optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            self.compute_metrics(x, y, y_pred, sample_weight)

    def test_step(self: Any, data: Any) -> dict[str, Any]:
        """Losses and metrics of a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        self._loss_of_part(y, y_pred, sample_weight, self._sum_of_own_losses())
        return self.compute_metrics(x, y, y_pred, sample_weight)


def gradient_of(weight: keras.Variable) -> torch.Tensor:
    """Zeros where the loss doesn't depend on the weight, as on the other backends."""
    gradient = weight.value.grad
    return torch.zeros_like(weight.value) if gradient is None else gradient


def part_of(batch: Any, micro: int, parts: int) -> Any:
    """The micro-batch of that number."""

    def cut(x: Any) -> Any:
        if x is None:
            return None
        size = len(x) // parts
        return x[micro * size : (micro + 1) * size]

    return keras.tree.map_structure(cut, batch)
