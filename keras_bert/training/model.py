"""The functional model that tasks return: Keras's own, with the right update everywhere."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert.training.micro_batches import batch_rows
from keras_bert.training.objective import Objective

# Each backend's step is a file of its own, and imports its backend alone.
Loop: Any = importlib.import_module(f"keras_bert.training.{keras.backend.backend()}_loop").Loop


@keras.saving.register_keras_serializable("keras_bert")
class Model(Loop, keras.Model):
    """A functional `keras.Model` whose update is defined by the global batch.

    The loss of an output is sum(weights * losses) / sum(weights) over the whole batch: a
    position with weight 0 counts in neither sum. (Keras divides by the number of positions
    instead, so that its masked-LM loss shrinks with the padding.) The total loss is the plain
    sum of the outputs' means. The gradient is clipped once it's that of the whole batch, and a
    schedule counts updates. All this is the same on one device, under any `tf.distribute`
    strategy, and for any number of micro-batches.

    A step's dropout depends on the seed, the number of updates made, the replica and the
    micro-batch, and on nothing else, so that a run that goes on from a checkpoint draws what
    it would have drawn.

    Use it for your own head on our encoder:

    ```python
    x = keras.layers.Dense(5, name="stars")(encoder.output["pooled_output"])
    model = keras_bert.training.Model(encoder.input, {"stars": x})
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ```

    `segment_ids` and `padding_mask` may be left out of the inputs, or be None: zeros and ones.

    `fit` and `evaluate` show the losses' exact means over all weighted elements seen. A
    subclass with a step of its own would break all this: derive that from `keras.Model`.
    """

    accumulate = 1

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *,
        loss_weights: Any = None,
        accumulate: int = 1,
        jit_compile: bool | str = "auto",
        **kwargs: Any,
    ) -> None:
        """Keras's `compile`, and the number of micro-batches of an update.

        Args:
            optimizer: A Keras optimizer or its name. Clipping and schedule are its own.
            loss: A Keras loss for every output, or a dict of them by output name.
            loss_weights: A factor for each output's loss, in the same form.
            accumulate: Micro-batches that an update's batch is cut into, on each replica: the
                memory of a smaller batch, the update of the whole one.
            jit_compile: Whether XLA compiles the step; "auto" leaves it out on a CPU under
                TensorFlow, whose own kernels train BERT faster than XLA's there.
            **kwargs: Keras's other arguments.

        Raises:
            ValueError: `accumulate` isn't positive, the optimizer accumulates by itself, or a
                subclass has a step or a `compute_loss` of its own.
        """
        for name in ("train_step", "test_step", "compute_loss"):
            if getattr(type(self), name) is not getattr(Model, name):
                raise ValueError(
                    f"`{name}` of keras_bert.training.Model can't be overridden: derive a model "
                    f"with a step of its own from keras.Model. Received: {type(self).__name__}."
                )
        if type(accumulate) is not int or accumulate < 1:
            raise ValueError(
                f"`accumulate` must be a positive integer. Received: accumulate={accumulate!r}."
            )
        with self.creating_variables():
            optimizer = keras.optimizers.get(optimizer)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if getattr(inner, "gradient_accumulation_steps", None):
            raise ValueError(
                "`gradient_accumulation_steps` must be left to `model.compile(accumulate=...)`: "
                "the optimizer's own counts micro-batches as updates. Received: "
                f"gradient_accumulation_steps={inner.gradient_accumulation_steps}."
            )
        on_tensorflow = keras.backend.backend() == "tensorflow"
        if jit_compile == "auto" and on_tensorflow and not keras.distribution.list_devices("gpu"):
            jit_compile = False
        self.accumulate = accumulate
        self.take(optimizer)
        with self.creating_variables():
            self._objective = Objective(output_names(self), loss, loss_weights)
            super().compile(optimizer, jit_compile=jit_compile, **kwargs)
        self.loss = loss
        self._losses_of_compile = {"loss": loss, "loss_weights": loss_weights}

    def get_compile_config(self) -> dict[str, Any]:
        """What `save` stores of `compile`."""
        if not self.compiled:
            return {}
        losses = {
            name: keras.saving.serialize_keras_object(value)
            for name, value in self._losses_of_compile.items()
        }
        return {**super().get_compile_config(), **losses, "accumulate": self.accumulate}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles again what `save` stored; Keras asks for it beside an own `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Keras's `fit`, once the batch is known to fit replicas and micro-batches.

        Raises:
            ValueError: there are no batches, a batch can't be cut into equal parts, the
                model wasn't built in the strategy's scope, or an array of `padding_mask` is
                0 at the first position of every row.
        """
        mask = x.get("padding_mask") if isinstance(x, dict) else None
        if isinstance(mask, np.ndarray) and mask.size and not mask[..., 0].any():
            raise ValueError(
                "`padding_mask` must be 1 at tokens and 0 at padding. Received: 0 at the first "
                "position of every row; is it inverted?"
            )
        if callable(getattr(x, "cardinality", None)) and int(x.cardinality()) == 0:
            raise ValueError(
                "The data set holds no batches: fewer rows than a batch, with `drop_remainder`?"
            )
        rows, parts = batch_rows(x, batch_size), self.replicas() * self.accumulate
        if rows is not None and rows % parts:
            raise ValueError(
                f"The batch must be divisible by {self.replicas()} replicas x {self.accumulate} "
                f"micro-batches = {parts}. Received: batches of {rows}."
            )
        return super().fit(x, y, batch_size, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras's `predict`, to which no rows are no outputs rather than an error."""
        leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
        if leaves and all(hasattr(leaf, "shape") and leaf.shape[:1] == (0,) for leaf in leaves):
            row = keras.tree.map_structure(lambda leaf: None if leaf is None else zero_row(leaf), x)
            outputs = super().predict(row, *args, **kwargs)
            return keras.tree.map_structure(lambda output: output[:0], outputs)
        return super().predict(x, *args, **kwargs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """The loss of a whole batch, and the sum of the layers' own losses."""
        return self._loss_of_part(y, y_pred, sample_weight, self._sum_of_own_losses())

    def _loss_of_part(
        self,
        y: Any,
        y_pred: Any,
        sample_weight: Any,
        additional: Any,
        totals: Any = None,
        parts: int = 1,
    ) -> Any:
        """The loss of one of a batch's `parts`: the parts' losses add up to the batch's.

        Args:
            y: Labels in the form of the outputs.
            y_pred: The outputs.
            sample_weight: None, an array for all outputs, or a dict of them.
            additional: The sum of the layers' own losses, such as regularizers'; or None.
            totals: The whole batch's `Objective.totals`; None: this part is the whole.
            parts: Replicas times micro-batches.
        """
        loss = self._objective(y, y_pred, sample_weight, totals, parts)
        if additional is None:
            return loss
        # An update counts once, whatever the number of its parts.
        self._objective.additional.update_state(ops.stop_gradient(additional), 1 / parts)
        return loss + additional / parts

    def _forward(self, x: Any, replica: Any, micro_batch: Any) -> tuple[Any, Any]:
        """Predictions under this step's dropout, and the sum of the layers' own losses."""
        with keras.StatelessScope(collect_losses=True, initialize_variables=False) as scope:
            self._draw_by_update(self.optimizer.iterations, replica, micro_batch)
            with self.drawing(self._random_states):
                y_pred = self(x, training=True)
        random = {id(state) for state in self._random_states}
        for variable in self.non_trainable_variables:
            value = scope.get_current_value(variable)
            if value is not None and id(variable) not in random:
                variable.assign(value)
        return y_pred, self._sum_of_own_losses(scope.losses)

    @property
    def metrics(self) -> list[Any]:
        """Keras's metrics, and the means of the losses."""
        if not self.compiled:
            return super().metrics
        return [*super().metrics, *self._objective.means.values(), self._objective.additional]

    def get_metrics_result(self) -> dict[str, Any]:
        """All metrics; `loss` is the sum of the outputs' mean losses, as they're shown."""
        results = super().get_metrics_result()
        results.pop(self._objective.additional.name)
        results["loss"] = self._objective.result()
        if len(self._objective.means) == 1:
            [mean] = self._objective.means.values()
            results.pop(mean.name)
        return results

    # Keras checks the inputs' names in `__call__`, and JAX's loop goes straight to `call`.
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self._with_defaults(inputs), *args, **kwargs)

    # Keras reads the signature: without `training` in it, dropout would stay off.
    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return super().call(self._with_defaults(inputs), training=training, mask=mask)

    def _sum_of_own_losses(self, collected: Sequence[Any] = ()) -> Any:
        losses = [*collected, *self.losses]
        summed = [ops.sum(ops.cast(loss, keras.config.floatx())) for loss in losses]
        return sum(summed) if summed else None

    def _draw_by_update(self, update: Any, replica: Any, micro_batch: Any) -> None:
        """Sets every random layer's state to a function of these three and of its seed.

        To be called in a `keras.StatelessScope`, which keeps the variables themselves as they
        are. A state is (seed, count of draws); a layer draws at most 64 times a step.
        """
        # Odd numbers far apart: no sum of a few of them is another's.
        place = ops.cast(replica, "int32") * 0x1E3779B1 + ops.cast(micro_batch, "int32") * 0x5EBCA77
        for state in self._random_states:
            seed = state.value[0] + ops.cast(place, state.dtype)
            count = ops.cast(update, state.dtype) * 64
            state.assign(ops.stack([seed, count]))

    @property
    def _random_states(self) -> list[keras.Variable]:
        return [v for v in self.non_trainable_variables if v.name == "seed_generator_state"]

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


def zero_row(leaf: Any) -> np.ndarray:
    """One row of zeros of an array's or tensor's kind."""
    return np.zeros((1, *leaf.shape[1:]), keras.backend.standardize_dtype(leaf.dtype))


def output_names(model: keras.Model) -> list[str]:
    """Names of a functional model's outputs, in order: a dict's keys, or the layers'.

    Several outputs of one layer are told apart by a number: split, split_1.
    """
    if isinstance(model.output, dict):
        return list(model.output)
    names = list(model.output_names)
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}_{n}" if n else name for name, n in zip(names, before, strict=True)]
