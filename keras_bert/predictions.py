"""Between texts and a model: what texts may be, batches of few shapes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert.training import Model

MAX_LENGTHS, SHORTEST = 8, 16
# A batch keeps a CPU's cores busy, and a short text alone costs no more than one of 512 tokens.
MAX_ROWS, MAX_TOKENS = 8, 512
MASKS = 8  # in a row


class Row(NamedTuple):
    """One sequence as the model reads it; `masks` are up to `MASKS` positions to predict."""

    token_ids: list[int]
    segment_ids: list[int]
    masks: Sequence[int] = ()


def predictions(
    model: keras.Model, outputs: dict[str, Any], rows: list[Row], longest: int, pad_id: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Computes outputs for rows of any lengths, without dropout.

    A row is padded to the next of at most eight lengths, and a batch to the number of rows of its
    length: a model is compiled for eight shapes at most, once in its life, and each row is
    computed in the same shape whatever it came with.

    Args:
        model: Whose inputs are those of an encoder, and maybe `mask_positions`.
        outputs: Tensors of its graph by name, those of `model.output` or of hidden layers.
        rows: Of at most `longest` tokens.
        longest: The longest sequence that's asked for.
        pad_id: Of [PAD].

    Yields:
        (number of the row, its outputs without the batch's axis, float32), in no given order.
        Where an output has an axis T, it's of the padded length.
    """
    lengths = padded_lengths(longest)
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        length = min(each for each in lengths if each >= len(row.token_ids))
        groups.setdefault(length, []).append(number)
    compiled = _compiled(model, outputs)
    for length, numbers in groups.items():
        size = min(MAX_ROWS, max(1, MAX_TOKENS // length))
        for first in range(0, len(numbers), size):
            batch = numbers[first : first + size]
            inputs = _inputs([rows[number] for number in batch], size, length, pad_id)
            values = compiled.predict_on_batch({name: inputs[name] for name in model.input})
            for slot, number in enumerate(batch):
                yield number, {name: x[slot].astype(np.float32) for name, x in values.items()}


def padded_lengths(longest: int) -> list[int]:
    """The lengths to which rows are padded: `longest`, its half, its quarter, ... down to 16."""
    lengths = [longest]
    while len(lengths) < MAX_LENGTHS and lengths[-1] > SHORTEST:
        lengths.append((lengths[-1] + 1) // 2)
    return lengths


def _inputs(rows: list[Row], size: int, length: int, pad_id: int) -> dict[str, np.ndarray]:
    inputs = {
        "token_ids": np.full((size, length), pad_id, np.int32),
        "segment_ids": np.zeros((size, length), np.int32),
        "padding_mask": np.zeros((size, length), np.int32),
        "mask_positions": np.zeros((size, MASKS), np.int32),
    }
    # The first row again fills the batch up: a row of nothing but padding could give NaN.
    for slot, row in enumerate(rows + rows[:1] * (size - len(rows))):
        inputs["token_ids"][slot, : len(row.token_ids)] = row.token_ids
        inputs["segment_ids"][slot, : len(row.token_ids)] = row.segment_ids
        inputs["padding_mask"][slot, : len(row.token_ids)] = 1
        inputs["mask_positions"][slot, : len(row.masks)] = row.masks
    return inputs


# A model -> its compiled forms by the names of their outputs, which live as long as it does.
_forms: weakref.WeakKeyDictionary[keras.Model, dict[tuple[str, ...], keras.Model]] = (
    weakref.WeakKeyDictionary()
)


def _compiled(model: keras.Model, outputs: dict[str, Any]) -> keras.Model:
    """A model on the same weights, so that the user's own keeps its `compile` as it is."""
    forms = _forms.setdefault(model, {})
    names = tuple(outputs)
    if names not in forms:
        forms[names] = Model(model.input, outputs)
        forms[names].compile(optimizer=None)
    return forms[names]


def as_texts(texts: Any, name: str) -> tuple[list[str], bool]:
    """The texts of an argument, and whether it was one alone; bytes are decoded.

    Raises:
        TypeError: it, or one in it, is no text; the message names the row.
    """
    if isinstance(texts, (str, bytes)):
        return [as_text(texts, name, "row 0")], True
    if not isinstance(texts, (list, tuple, np.ndarray)):
        raise TypeError(f"`{name}` must be a text or a list of texts. Received: {texts!r}.")
    return [as_text(text, name, f"row {row}") for row, text in enumerate(texts)], False


def as_columns(
    firsts: Any, seconds: Any, name: str, other: str
) -> tuple[list[str], list[str], bool]:
    """Two arguments of as many texts, and whether each was one text alone.

    Raises:
        TypeError: as for `as_texts`.
        ValueError: they don't match.
    """
    firsts, is_single = as_texts(firsts, name)
    seconds, other_is_single = as_texts(seconds, other)
    if is_single != other_is_single or len(firsts) != len(seconds):
        sizes = (firsts, is_single), (seconds, other_is_single)
        first, second = ("one" if alone else f"a list of {len(texts)}" for texts, alone in sizes)
        raise ValueError(
            f"`{other}` must be one text for one, or a list as long as `{name}`. "
            f"Received: {second} for {first}."
        )
    return firsts, seconds, is_single


def as_text(text: Any, name: str, where: str) -> str:
    """A text as str; bytes are decoded. TypeError where it's neither."""
    if isinstance(text, bytes):
        return text.decode("utf-8", errors="ignore")
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be str or UTF-8 bytes. Received: {where} is {text!r}.")
    return text
