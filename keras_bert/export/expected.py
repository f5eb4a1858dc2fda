"""What an export must answer: the functions of `inference`, laid out as its signatures are.

They're another way to the same answers, text by text in Python: where the two agree, the graph's
tokens, windows and decoding are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_bert import inference
from keras_bert.checkpoints import Preset
from keras_bert.export.filling import TOP_K

Arrays = dict[str, np.ndarray]


def expected(preset: Preset, task: str, *columns: Any) -> Arrays:
    """The outputs that texts (or lists of words) should have.

    Args:
        preset: The one that was exported.
        task: Its name, one of `LAYOUTS`.
        columns: Texts, or texts and their other texts.
    """
    return LAYOUTS[task](preset, *columns)


def _fillings(preset: Preset, texts: Sequence[str]) -> Arrays:
    top_k = min(TOP_K, preset.tokenizer.vocabulary_size)
    rows: Any = inference.fill_mask(preset, list(texts), top_k)
    return {
        "tokens": _padded([[each.tokens for each in row] for row in rows], "", top_k),
        "scores": _padded([[each.scores for each in row] for row in rows], 0.0, top_k),
        "count": np.array([len(row) for row in rows], np.int32),
    }


def _classes(preset: Preset, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Arrays:
    found: Any = inference.classify(preset, list(texts), None if pairs is None else list(pairs))
    outputs = {"score": np.array([each.score for each in found], np.float32)}
    if found[0].label is None:
        return outputs
    outputs["label"] = np.array([each.label.encode() for each in found], object)
    outputs["scores"] = np.array([list(each.scores.values()) for each in found], np.float32)
    if preset.settings.get("multi_label"):
        outputs["labels"] = _padded([each.labels for each in found], "")
        outputs["count"] = np.array([len(each.labels) for each in found], np.int32)
    return outputs


def _tags(preset: Preset, texts: Sequence[Any]) -> Arrays:
    rows: Any = inference.tag(preset, list(texts))
    fills = {"words": "", "tags": "", "starts": 0, "ends": 0}
    outputs = {
        name: _padded([getattr(row, name) for row in rows], fill) for name, fill in fills.items()
    }
    return outputs | {"count": np.array([len(row.words) for row in rows], np.int32)}


def _answers(preset: Preset, questions: Sequence[str], contexts: Sequence[str]) -> Arrays:
    found: Any = inference.answer(preset, list(questions), list(contexts))
    return {
        "answer": np.array([each.answer.encode() for each in found], object),
        "start": np.array([each.start for each in found], np.int32),
        "end": np.array([each.end for each in found], np.int32),
        "score": np.array([each.score for each in found], np.float32),
    }


def _vectors(preset: Preset, texts: Sequence[str]) -> Arrays:
    return {"embedding": inference.embed(preset, list(texts))}


def _padded(rows: Sequence[Sequence[Any]], fill: Any, *inner: int) -> np.ndarray:
    """Rows filled up to the longest; texts become UTF-8."""
    dtype: Any = {str: object, int: np.int32, float: np.float32}[type(fill)]
    longest = max(map(len, rows), default=0)
    padded = np.full((len(rows), longest, *inner), _utf8(fill), dtype)
    for i, row in enumerate(rows):
        if row:
            padded[i, : len(row)] = _utf8(row)
    return padded


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return [_utf8(each) for each in value] if isinstance(value, (list, tuple)) else value


LAYOUTS: dict[str, Callable[..., Arrays]] = {
    "pretraining": _fillings,
    "masked_lm": _fillings,
    "text_classifier": _classes,
    "token_classifier": _tags,
    "span_classifier": _answers,
    "sentence_embedder": _vectors,
}
