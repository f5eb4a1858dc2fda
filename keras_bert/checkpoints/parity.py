"""What a conversion did with every tensor, and how far the outputs moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_bert.errors import InputError


@dataclasses.dataclass
class Report:
    """A conversion's account: every tensor of the source and every weight of ours is in it.

    Attributes:
        source: The file that was read.
        read: Names of the tensors in the source.
        assigned: Paths of our weights that got a tensor.
        dropped: A tensor that we don't need -> why.
        kept: A weight of ours that the source may lack -> why it keeps its initial value.
        unexpected: Tensors that no weight took.
        missing: Tensors that a weight needs and the source lacks.
        prefix: What stood before the encoder's names in the source.
        max_difference: Largest difference of the outputs after a round trip; None: not measured.
    """

    source: str = ""
    read: list[str] = dataclasses.field(default_factory=list)
    assigned: list[str] = dataclasses.field(default_factory=list)
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    kept: dict[str, str] = dataclasses.field(default_factory=dict)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    prefix: str = ""
    max_difference: float | None = None

    def check(self) -> None:
        """Raises InputError, which names the tensors, if any is missing or unexpected."""
        faults = []
        if self.missing:
            faults.append(f"lacks {_listed(self.missing)}")
        if self.unexpected:
            faults.append(f"holds the unexpected {_listed(self.unexpected)}")
        if faults:
            raise InputError(
                f"{self.source} {' and '.join(faults)}: it's another model's, or damaged."
            )

    def __str__(self) -> str:
        def reasons(things: Mapping[str, str]) -> str:
            return "".join(f"\n    {name}: {reason}" for name, reason in things.items())

        def names(things: list[str]) -> str:
            return "".join(f"\n    {name}" for name in things)

        removed = f" (without the prefix {self.prefix!r})" if self.prefix else ""
        lines = [
            self.source,
            f"  read        {len(self.read):5} tensors{removed}",
            f"  assigned    {len(self.assigned):5} weights",
            f"  dropped     {len(self.dropped):5} tensors{reasons(self.dropped)}",
            f"  kept        {len(self.kept):5} weights{reasons(self.kept)}",
            f"  unexpected  {len(self.unexpected):5} tensors{names(self.unexpected)}",
            f"  missing     {len(self.missing):5} tensors{names(self.missing)}",
        ]
        if self.max_difference is not None:
            lines.append(f"  outputs differ by {self.max_difference:.1e} after a round trip")
        return "\n".join(lines)


def assign(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    names: Callable[[str], str | None],
    source: str,
    *,
    encoder: keras.Model | None = None,
    convert: Callable[[str, np.ndarray], np.ndarray] = lambda path, tensor: tensor,
    dropped: Mapping[str, str] | None = None,
    may_lack: Callable[[str], str | None] = lambda path: None,
) -> Report:
    """Gives every weight its tensor; shapes and dtypes are checked before any weight changes.

    Args:
        model: The model to fill.
        tensors: The source's tensors by their names in it.
        names: Our weight's path -> the tensor's name in the source; None: it has none there.
        source: The file, for messages.
        encoder: Filled too where the task's model leaves a part of it unused: the pooler.
        convert: (path, tensor) -> the tensor in our layout, such as a transposed kernel.
        dropped: Tensors that no weight shall take -> why.
        may_lack: A path whose tensor isn't there -> why it may keep its value; None: it's missing.

    Raises:
        InputError: a tensor has the wrong shape or isn't of floats; the message names it, the
            file, and both shapes. What's missing or unexpected is left to `Report.check`.
    """
    report = Report(source=source, read=list(tensors), dropped=dict(dropped or {}))
    used, values = set(report.dropped), []
    for path, weight in _weights(model, encoder).items():
        name = names(path)
        if name is None or name not in tensors:
            reason = may_lack(path)
            if reason is None:
                report.missing.append(name or path)
            else:
                report.kept[path] = reason
            continue
        values.append((weight, _checked(weight, name, tensors[name], convert, source)))
        used.add(name)
        report.assigned.append(path)
    report.unexpected = [name for name in tensors if name not in used]
    for weight, value in values:
        weight.assign(value)
    return report


def max_difference(first: keras.Model, second: keras.Model) -> float:
    """The largest difference between two models' outputs on one fixed batch.

    The batch is two rows (of two choices each, for multiple choice) of up to 8 tokens, the second
    one padded; ids are drawn from the whole of the first model's token table.
    """
    batch = _probe_batch(first)
    outputs = []
    for model in (first, second):
        values = model(batch, training=False)
        outputs.append({name: keras.ops.convert_to_numpy(x) for name, x in values.items()})
    ours, theirs = outputs
    # Python's max would lose a NaN.
    return float(np.max([np.max(np.abs(ours[name] - theirs[name])) for name in ours]))


def _checked(
    weight: keras.Variable,
    name: str,
    tensor: np.ndarray,
    convert: Callable[[str, np.ndarray], np.ndarray],
    source: str,
) -> np.ndarray:
    if not np.issubdtype(tensor.dtype, np.floating):
        raise InputError(
            f"{source}: tensor {name} must hold floats. Received: dtype {tensor.dtype}."
        )
    value, expected = convert(weight.path, tensor), tuple(weight.shape)
    if value.shape != expected:
        stored = "" if value.shape == tensor.shape else f", {tensor.shape} as stored"
        raise InputError(
            f"{source}: tensor {name} must have the shape {expected} to become {weight.path}. "
            f"Received: {value.shape}{stored}."
        )
    # In the weights' own precision, in which a large float64 has no place.
    if not np.isfinite(value.astype(np.float32)).all():
        raise InputError(f"{source}: tensor {name} holds a value that is no finite number.")
    return value


def _weights(model: keras.Model, encoder: keras.Model | None) -> dict[str, keras.Variable]:
    models = [model] if encoder is None else [encoder, model]
    return {weight.path: weight for each in models for weight in each.weights}


def _probe_batch(model: keras.Model) -> dict[str, Any]:
    rows = {weight.path: weight.shape[0] for weight in model.weights}
    length = min(8, rows.get("position_embedding/embeddings", 8))
    shape: tuple[int, ...] = (2, length)
    if len(model.input["token_ids"].shape) == 3:
        shape = (2, 2, length)
    padding_mask = np.ones(shape, "int32")
    padding_mask[1, ..., length // 2 + 1 :] = 0
    batch = {
        "token_ids": np.random.default_rng(0).integers(
            0, rows["token_embedding/embeddings"], shape, "int32"
        ),
        "segment_ids": np.zeros(shape, "int32"),
        "padding_mask": padding_mask,
        "mask_positions": np.array([[1, 2], [0, 1]], "int32"),
    }
    return {name: batch[name] for name in model.input}


def _listed(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
