"""The training step on TensorFlow, on one device or under any `tf.distribute` strategy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_bert.training.micro_batches import num_micro_batches

# Like Keras's own steps, these have no Python loops over tensors to be converted, and converting
# what they call takes a fifth of the time of tracing.
_graph = functools.partial(tf.function, autograph=False)


class Loop:
    """TensorFlow's steps of `keras_bert.training.Model`.

    A replica computes its share of the global loss, whose denominators are summed over the
    replicas before; gradients are summed next, and clipped and applied last.
    """

    def creating_variables(self: Any) -> contextlib.AbstractContextManager[Any]:
        """Where metrics and the optimizer make their variables: the model's strategy."""
        return self.distribute_strategy.scope()

    def take(self: Any, optimizer: Any) -> None:
        """Has the optimizer take gradients as they are: the step has summed them.

        Keras's optimizers clip in each replica and sum afterwards, which is another update.

        Raises:
            ValueError: the model, or the optimizer, was made under another strategy.
        """
        check_scope(self, optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if optimizer is not None:
            optimizer._all_reduce_sum_gradients = list

    def drawing(self, states: Any) -> contextlib.AbstractContextManager[None]:
        """Nothing to prepare: every layer draws by its own state."""
        return contextlib.nullcontext()

    def replicas(self: Any) -> int:
        """Copies of the model that share a batch."""
        return self.distribute_strategy.num_replicas_in_sync

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras's `fit`, once the model is known to belong to the strategy in force."""
        check_scope(self, getattr(self, "optimizer", None))
        return super().fit(*args, **kwargs)  # type: ignore[misc]

    def predict_on_batch(self: Any, x: Any) -> Any:
        """Keras's, which under a strategy would give every replica the whole batch."""
        if self.replicas() == 1:
            return super().predict_on_batch(x)  # type: ignore[misc]
        rows = len(keras.tree.flatten(x)[0])
        return self.predict(x, batch_size=rows, verbose=0)

    def make_train_function(self: Any, force: bool = False) -> None:
        """The function that Keras calls with an iterator, for `steps_per_execution` updates."""
        if self.train_function is None or force:
            self.train_function = self._function_of(self.train_step)

    def make_test_function(self: Any, force: bool = False) -> None:
        """The same for `evaluate`."""
        if self.test_function is None or force:
            self.test_function = self._function_of(self.test_step)

    def _function_of(self: Any, step: Callable[[Any], None]) -> Callable[[Any], dict[str, Any]]:
        strategy = self.distribute_strategy
        # XLA loops over micro-batches of one known size: then each batch is traced by its own
        # shape, where otherwise one graph takes them all from the iterator.
        by_shape = self.jit_compile and self.accumulate > 1
        if self.jit_compile and strategy.num_replicas_in_sync == 1:
            step = _graph(step, jit_compile=True, reduce_retracing=not by_shape)

        def run(data: Any) -> None:
            strategy.run(step, args=(without_optionals(data),))

        def one(data: Any) -> dict[str, Any]:
            run(data)
            return self.get_metrics_result()

        def from_iterator(iterator: Any) -> dict[str, Any]:
            """At least one step, and no more than there's data for."""

            def wanted(done: Any, data: Any) -> Any:
                return tf.logical_and(done < self.steps_per_execution, data.has_value())

            def body(done: Any, data: Any) -> tuple[Any, Any]:
                run(data.get_value())
                # The batch after the last step belongs to the next call.
                following = tf.cond(
                    done + 1 < self.steps_per_execution,
                    iterator.get_next_as_optional,
                    lambda: data,
                )
                return done + 1, following

            run(iterator.get_next())
            if self.steps_per_execution > 1:
                tf.while_loop(wanted, body, [tf.constant(1), iterator.get_next_as_optional()])
            return self.get_metrics_result()

        if not self.run_eagerly:
            one = _graph(one, reduce_retracing=not by_shape)
            from_iterator = _graph(from_iterator, reduce_retracing=True)

        def function(iterator: Any) -> dict[str, Any]:
            is_tensorflows = isinstance(
                iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)
            )
            if is_tensorflows and not (by_shape or self.run_eagerly):
                return from_iterator(iterator)
            results = one(next(iterator))
            for _, data in zip(range(self.steps_per_execution - 1), iterator, strict=False):
                results = one(data)
            return results

        return function

    def train_step(self: Any, data: Any) -> None:
        """One update, in a replica."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        replica = tf.distribute.get_replica_context()
        totals = self._objective.totals(y, sample_weight)
        gradients_of = self._gradients
        if replica.num_replicas_in_sync > 1:
            totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, totals)
            if self.jit_compile:
                gradients_of = _graph(gradients_of, jit_compile=True)
        number = replica.replica_id_in_sync_group
        gradients = gradients_of((x, y, sample_weight), totals, number)
        weights = self.trainable_variables
        if replica.num_replicas_in_sync > 1:
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self.optimizer.apply(gradients, weights)

    def test_step(self: Any, data: Any) -> None:
        """Losses and metrics of a batch, in a replica."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        own = self._sum_of_own_losses()
        self._loss_of_part(y, y_pred, sample_weight, own, parts=self.replicas())
        self.compute_metrics(x, y, y_pred, sample_weight)

    def _gradients(self: Any, batch: Any, totals: Any, replica: Any) -> list[tf.Tensor]:
        """The replica's share of the gradients, summed over its micro-batches."""
        parts = num_micro_batches(batch, self.accumulate)
        if parts == 1:
            return self._gradients_of_part(batch, totals, replica, 0, parts)

        def body(micro: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
            part = part_of(batch, micro, parts)
            gradients = self._gradients_of_part(part, totals, replica, micro, parts)
            return micro + 1, [a + b for a, b in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_variables]
        _, gradients = tf.while_loop(
            lambda micro, sums: micro < parts,
            body,
            (tf.constant(0), zeros),
            maximum_iterations=parts,
        )
        return gradients

    def _gradients_of_part(
        self: Any, batch: Any, totals: Any, replica: Any, micro: Any, parts: int
    ) -> list[tf.Tensor]:
        x, y, sample_weight = batch
        parts = parts * self.replicas()
        with tf.GradientTape() as tape:
            y_pred, additional = self._forward(x, replica, micro)
            loss = self._loss_of_part(y, y_pred, sample_weight, additional, totals, parts)
            loss = self.optimizer.scale_loss(loss)
        self.compute_metrics(x, y, y_pred, sample_weight)
        weights = [weight.value for weight in self.trainable_variables]
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        # The rows of an embedding's gradient that belong to one token are summed by this: the
        # gradient's norm is that of the sum.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Makes the variables of metrics and optimizer, which a replica can't make.

        Keras takes the mean of the replicas' first batches for it, which fails where replicas
        are processes: one replica's batch tells the same.
        """
        strategy = self.distribute_strategy
        if not tf.distribute.has_strategy() and strategy.num_replicas_in_sync == 1:
            return
        if iterator is not None:
            for _, _, batches in iterator:
                first = next(batches)
                data_batch = keras.tree.map_structure(
                    lambda x: strategy.experimental_local_results(x)[0], first
                )
                break
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)


def part_of(batch: Any, micro: Any, parts: int) -> Any:
    """The micro-batch of that number; its shape is static where the batch's is."""

    def cut(x: Any) -> Any:
        if x is None:
            return None
        rows = x.shape[0]
        if rows is not None:
            return tf.reshape(x, [parts, rows // parts, *x.shape[1:]])[micro]
        # The last parts may be short or empty, which isn't for XLA: see `_function_of`.
        size = -(-tf.shape(x)[0] // parts)
        return x[micro * size : (micro + 1) * size]

    return keras.tree.map_structure(cut, batch)


def without_optionals(data: Any) -> Any:
    """Keras hands None over as an empty `tf.experimental.Optional`."""
    return keras.tree.map_structure(
        lambda x: None if isinstance(x, tf.experimental.Optional) else x, data
    )


def check_scope(model: keras.Model, optimizer: Any) -> None:
    """Raises ValueError unless all was made under the strategy that is in force."""
    strategy = model.distribute_strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise ValueError(
            "`model` must be built inside `with strategy.scope():`, the strategy that it's "
            "trained under. Received: a model built outside."
        )
    for weight in model.weights:
        if not strategy.extended.variable_created_in_scope(weight.value):
            raise ValueError(
                "`model` must be built inside `with strategy.scope():` as a whole, encoder "
                f"included. Received: {weight.path} was made outside."
            )
    if getattr(optimizer, "_distribution_strategy", strategy) is not strategy:
        raise ValueError(
            "`optimizer` must be made inside `with strategy.scope():`, like the model. "
            f"Received: {type(optimizer).__name__} made outside."
        )
