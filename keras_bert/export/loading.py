"""An export in Python: text in, answers out, with TensorFlow and without Keras's model."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_bert.answers import Answer, Classification, Filling, MultiLabel, Tagging, class_names
from keras_bert.entities import OUTSIDE
from keras_bert.errors import InputError
from keras_bert.export.self_check import ops
from keras_bert.export.signatures import DESCRIPTION, TEXT_FORMS
from keras_bert.files import numbers
from keras_bert.predictions import as_columns, as_texts

BATCH = 64  # texts of a call
# Core TensorFlow, but they run Python or reach files.
OUTSIDE_OPS = {
    *("EagerPyFunc", "PyFunc", "PyFuncStateless"),
    *("MatchingFiles", "ReadFile", "WriteFile", "WholeFileReaderV2"),
}


# What TensorFlow raises at files that are missing, empty or cut.
BROKEN = (
    *(OSError, ValueError, LookupError, AttributeError, RuntimeError, DecodeError),
    tf.errors.OpError,
)


def load_saved_model(folder: str | os.PathLike[str]) -> Exported:
    """Reads an export, for texts in and answers out.

    Args:
        folder: What `export_saved_model` gave back, or the folder around it, of which the highest
            version is taken.

    Raises:
        InputError: there's no export in the folder, or one that's damaged, or one that runs Python
            or reaches files.
    """
    folder = pathlib.Path(folder)
    if not (folder / DESCRIPTION).is_file():
        there = versions(folder)
        if not there:
            raise InputError(
                f"{folder} holds no export: {DESCRIPTION} isn't there. Make one with "
                "export_saved_model."
            )
        folder = there[-1]
    try:
        outside = sorted(ops(folder) & OUTSIDE_OPS)
    except (OSError, DecodeError) as error:
        raise InputError(f"{folder} is damaged ({error}): export the preset again.") from error
    if outside:
        raise InputError(f"{folder} isn't loaded: it has the op {outside[0]}, which no export has.")
    return Exported(folder)


def versions(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The exports in a folder, from the lowest number to the highest."""
    folders = [pathlib.Path(folder, str(number)) for number in sorted(numbers(folder))]
    return [each for each in folders if (each / DESCRIPTION).is_file()]


class Exported:
    """An export, called like the `keras_bert` function of its task, without the preset.

        exported = keras_bert.load_saved_model("exports/topics")
        exported("How do I format a string?")  # as keras_bert.classify(preset, ...)
        exported(questions, contexts)  # as keras_bert.answer(preset, ...)

    One text gives one answer and a list a list; a text without a [MASK] has nothing to fill: [].
    Texts of any number and length run through one graph, which is never traced again.

    Attributes:
        task: The name of the preset's model.
        labels: Names of the classes.
        signatures: The SavedModel's own functions, tensors in and tensors out.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        try:
            description = _described(folder / DESCRIPTION)
            self._model = tf.saved_model.load(str(folder))
            self.signatures = self._model.signatures
        except BROKEN as error:
            about = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"{folder} is damaged ({about:.200}): export the preset again."
            ) from error
        self.task: str = description["task"]
        self.labels = tuple(description["labels"])

    def __call__(self, texts: Any, others: Any = None) -> Any:
        """Answers as the task's function of `keras_bert` does.

        Args:
            texts: A text or a list of them; for a tagger its items may be lists of words.
            others: The second texts: of pairs, or the contexts of questions.

        Raises:
            TypeError: a text is neither str nor bytes.
            ValueError: the export takes two texts and got one, or the reverse; or they don't
                match.
            tf.errors.InvalidArgumentError: the export refuses a text, and says why.
        """
        [form] = [name for name in TEXT_FORMS if name in self.signatures]
        names = TEXT_FORMS[form]
        if (others is None) == (len(names) == 2):
            raise ValueError(
                f"This export takes {' and '.join(f'`{name}`' for name in names)}. "
                f"Received: {'one' if others is None else 'two'}."
            )
        if others is not None:
            *columns, is_single = as_columns(texts, others, *names)
        elif self.task == "token_classifier" and not isinstance(texts, (str, bytes)):
            return self._tagged(texts)
        else:
            column, is_single = as_texts(texts, "texts")
            columns = [column]
        results = self._asked(form, *columns)
        return results[0] if is_single else results

    def _asked(self, signature: str, *columns: Sequence[Any]) -> Any:
        names = TEXT_FORMS.get(signature, (signature,))
        results: list[Any] = []
        for first in range(0, len(columns[0]), BATCH):
            inputs = {
                name: tf.constant(_without_surrogates(column[first : first + BATCH]), tf.string)
                for name, column in zip(names, columns, strict=True)
            }
            outputs = self.signatures[signature](**inputs)
            results += self._decoded({name: x.numpy() for name, x in outputs.items()})
        if self.task == "sentence_embedder":
            size = self.signatures[signature].structured_outputs["embedding"].shape[-1]
            return np.array(results, np.float32).reshape(-1, size)  # also of no text
        return results

    def _tagged(self, items: Any) -> list[Any]:
        """Texts and lists of words, each by its own signature, in their order."""
        if not isinstance(items, (list, tuple, np.ndarray)):
            raise TypeError(
                "`texts` must be a text, or a list of texts and lists of words. "
                f"Received: {items!r}."
            )
        results: list[Any] = [None] * len(items)
        split = [isinstance(item, (list, tuple, np.ndarray)) for item in items]
        for signature, is_split in (("text", False), ("words", True)):
            numbers = [i for i, each in enumerate(split) if each is is_split]
            column = [items[i] for i in numbers]
            if is_split:
                rows = [as_texts(item, "texts")[0] for item in column]
                longest = max(map(len, rows), default=0)
                column = [[*row, *[""] * (longest - len(row))] for row in rows]
            else:
                column, _ = as_texts(column, "texts")
            for i, result in zip(numbers, self._asked(signature, column), strict=True):
                results[i] = self._with_empty_words(result, items[i]) if is_split else result
        return results

    def _with_empty_words(self, result: Tagging, words: Sequence[Any]) -> Tagging:
        """The signature takes empty words at the end for padding; here they're words."""
        rest = len(words) - len(result.words)
        # Classes without names are called "0", "1", ...
        tag = OUTSIDE if OUTSIDE in self.labels else ("0", *self.labels[:1], *result.tags)[-1]
        first = sum(len(word) + 1 for word in result.words)
        places = tuple(range(first, first + rest))
        return Tagging(
            result.words + ("",) * rest,
            result.tags + (tag,) * rest,
            result.starts + places,
            result.ends + places,
        )

    def _decoded(self, outputs: dict[str, np.ndarray]) -> list[Any]:
        """The rows of a call's outputs as the answers of `keras_bert`."""
        decode = DECODERS[self.task]
        return [
            decode({name: x[row] for name, x in outputs.items()}, self.labels)
            for row in range(len(next(iter(outputs.values()))))
        ]


def _described(path: pathlib.Path) -> dict[str, Any]:
    """The task and the labels that an export was written with.

    Raises:
        ValueError: they aren't there, or of another kind.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    found = found if isinstance(found, dict) else {}
    labels = found.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"{path.name} has no list of labels")
    if found.get("task") not in list(DECODERS):
        raise ValueError(f"{path.name} has the task {found.get('task')!r:.80}")
    return found


def _without_surrogates(texts: Any) -> Any:
    """Half of a cut emoji can't be UTF-8: an unknown character of private use stands for it."""
    if isinstance(texts, str):
        return re.sub("[\ud800-\udfff]", "\ue000", texts)
    return [_without_surrogates(each) for each in texts]


def _classification(row: dict[str, Any], labels: tuple[str, ...]) -> Any:
    score = float(row["score"])
    if "label" not in row:
        return Classification(None, score, {})
    names = class_names(labels, len(row["scores"]))
    scores = dict(zip(names, row["scores"].tolist(), strict=True))
    if "labels" not in row:
        return Classification(row["label"].decode(), score, scores)
    return MultiLabel(row["label"].decode(), score, scores, _texts(row["labels"], row["count"]))


def _tagging(row: dict[str, Any], labels: tuple[str, ...]) -> Tagging:
    count = row["count"]
    starts, ends = (tuple(row[name][:count].tolist()) for name in ("starts", "ends"))
    return Tagging(_texts(row["words"], count), _texts(row["tags"], count), starts, ends)


def _answer(row: dict[str, Any], labels: tuple[str, ...]) -> Answer:
    start, end = int(row["start"]), int(row["end"])
    return Answer(row["answer"].decode(), start, end, float(row["score"]))


def _fillings(row: dict[str, Any], labels: tuple[str, ...]) -> list[Filling]:
    pairs = zip(row["tokens"][: row["count"]], row["scores"], strict=False)
    return [Filling(_texts(tokens), tuple(scores.tolist())) for tokens, scores in pairs]


def _embedding(row: dict[str, Any], labels: tuple[str, ...]) -> Any:
    return row["embedding"]


def _texts(values: Any, count: int | None = None) -> tuple[str, ...]:
    return tuple(value.decode() for value in values[:count])


DECODERS = {
    "text_classifier": _classification,
    "token_classifier": _tagging,
    "span_classifier": _answer,
    "masked_lm": _fillings,
    "pretraining": _fillings,
    "sentence_embedder": _embedding,
}
