"""What a training step takes in memory, and how to take less."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

GIB = 2**30


def recompute(model: keras.Model, on: bool = True) -> None:
    """Has every block of the model compute its activations twice in place of keeping them.

    The backward pass keeps the blocks' inputs and computes the rest again: a fraction of the
    memory, about a third more time, and the same update, dropout included. It changes no weight,
    path or file, and isn't saved: a loaded model has to be asked again.

    ```python
    model = keras_bert.load("folder").model
    keras_bert.training.recompute(model)
    model.compile(...)
    ```

    Args:
        model: Any model with our blocks in it, fresh or loaded, compiled or not.
        on: False: back to keeping them.

    Raises:
        ValueError: there's no such block.
    """
    for block in blocks_of(model):
        block.recompute = on
    model.train_function = None  # a step that's compiled already is as it was


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one replica's training step takes at its fullest moment.

    Attributes:
        rows: Examples that are in memory at once, a micro-batch.
        length: Their tokens T.
        weights: The model's variables.
        slots: The optimizer's.
        gradients: Those that are alive at that moment.
        activations: What the backward pass needs, and what it's working on.
    """

    rows: int
    length: int
    weights: int
    slots: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.slots + self.gradients + self.activations

    def __str__(self) -> str:
        return (
            f"needs about {self.total / GIB:.1f} GiB a replica, "
            f"batch {self.rows} x {self.length}: weights and optimizer "
            f"{(self.weights + self.slots) / GIB:.1f}, "
            f"gradients {self.gradients / GIB:.1f}, activations {self.activations / GIB:.1f}"
        )


def memory_estimate(
    model: keras.Model,
    batch_size: int,
    sequence_length: int,
    masked_positions: int | None = None,
    *,
    replicas: int = 1,
    accumulate: int | None = None,
    slots_per_weight: int = 2,
) -> MemoryEstimate:
    """Estimates the memory of a training step compiled by XLA, before it's compiled.

    Programs compiled for TPUs (BERT-Base and -Large, 128 and 512 tokens, bfloat16) took within
    17 % of it, recomputing or not. Without XLA more is kept.

    Args:
        model: A task with our blocks in it; what `recompute` did to it counts.
        batch_size: Rows of a global batch.
        sequence_length: T.
        masked_positions: M, where the model predicts masked tokens; None: 15 % of T.
        replicas: Copies of the model that share the batch; the weights aren't split.
        accumulate: Micro-batches; None: what the model was compiled with.
        slots_per_weight: Of the optimizer: 2 for AdamW and LAMB, 0 for plain SGD.

    Raises:
        ValueError: the model has no such block.
    """
    accumulate = getattr(model, "accumulate", 1) if accumulate is None else accumulate
    rows = -(-batch_size // (replicas * accumulate))
    blocks = blocks_of(model)
    whole = [rows * block_activations(block, sequence_length) for block in blocks]
    kept = [
        rows * block_input(block, sequence_length) if block.recompute else activations
        for block, activations in zip(blocks, whole, strict=True)
    ]
    # A block that's computed again is there as a whole, and so are its activations' gradients.
    working = max(
        2 * activations if block.recompute else 0
        for block, activations in zip(blocks, whole, strict=True)
    )
    predicting = any(tensor.name == "mask_positions" for tensor in model.inputs)
    if masked_positions is None:
        masked_positions = math.ceil(0.15 * sequence_length)
    outputs = rows * logits(model, masked_positions if predicting else sequence_length)

    trainable = bytes_of(model.trainable_variables)
    # Activations are all there when the backward pass begins, and gradients when it ends.
    first = (0, sum(kept) + max(outputs, working))
    last = (trainable, max(kept[0], working))
    gradients, activations = max(first, last, key=sum)
    sums = trainable if accumulate > 1 else 0
    return MemoryEstimate(
        rows=rows,
        length=sequence_length,
        weights=bytes_of(model.variables),
        slots=slots_per_weight * trainable,
        gradients=gradients + sums,
        activations=activations,
    )


def block_activations(block: Any, length: int) -> int:
    """Bytes a row that a block's backward pass needs.

    Of width D: the input, query, key and value, what attention mixed, both sums before a layer
    norm and the first norm's output; of width F: both sides of the activation; of width N T: the
    attention probabilities before and after dropout.
    """
    width = 8 * block.hidden_dim + 2 * block.intermediate_dim + 2 * block.num_heads * length
    return item_bytes(block) * length * width


def block_input(block: Any, length: int) -> int:
    """Bytes a row of a block's input."""
    return item_bytes(block) * length * block.hidden_dim


def logits(model: keras.Model, positions: int) -> int:
    """Bytes a row of the outputs, in float32; an axis of free length has `positions`."""
    shapes = [output.shape[1:] for output in model.outputs]
    return sum(4 * math.prod(size or positions for size in shape) for shape in shapes)


def item_bytes(layer: keras.layers.Layer) -> int:
    """Bytes of a number that the layer computes."""
    return 4 if layer.compute_dtype == "float32" else 2


def bytes_of(variables: list[Any]) -> int:
    """Bytes of variables that hold floats of 32 bits."""
    return 4 * sum(math.prod(variable.shape) for variable in variables)


def blocks_of(model: keras.Model) -> list[Any]:
    """The layers that can recompute their activations, at any depth."""
    blocks = [layer for layer in model._flatten_layers() if hasattr(layer, "recompute")]
    if not blocks:
        raise ValueError(
            "`model` must have layers that can recompute, such as `EncoderBlock`. "
            f"Received: a model named {model.name!r} without."
        )
    return blocks
