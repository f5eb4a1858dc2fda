"""What a pretrained model really learned: its scores apart for each kind of question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_bert.tokenizers import WordPiece

KINDS = ("mask", "kept", "random")


def evaluate_pretraining(
    model: keras.Model, batches: Iterable[Any], works: np.ndarray | None, mask_id: int
) -> dict[str, float]:
    """Scores a pretraining model without dropout, apart for each kind of position and pair.

    Copying a kept token is easy, so only the positions that show [MASK] tell what the model
    knows. A random next sentence from another work is easier to tell than one from the same.

    Args:
        model: From `tasks.pretraining`.
        batches: (inputs, labels, weights) from `data.pretraining(..., training=False)`.
        works: int (E, 2), the works that A and B of each example are from, in the same order;
            None: not known.
        mask_id: Of [MASK].

    Returns:
        `masked_lm_loss` (nats a position), `masked_lm_accuracy`, `next_sentence_loss`,
        `next_sentence_accuracy`, each over all its elements; `..._mask`, `..._kept` and
        `..._random` for the positions where [MASK], the true token or another one was shown;
        `next_sentence_accuracy_true`, `..._same_work` and `..._other_work`, or `..._random`
        for the last two where the works aren't known. A kind that doesn't occur is left out.
    """
    masked = {kind: _Scores() for kind in KINDS}
    pairs = {kind: _Scores() for kind in ("true", "same_work", "other_work", "random")}
    row = 0
    for inputs, labels, weights in map(as_numpy, batches):
        outputs = model.predict_on_batch(inputs)
        targets, asked = labels["masked_lm"], weights["masked_lm"] > 0
        shown = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], axis=1)
        losses, right = cross_entropy(outputs["masked_lm"], targets)
        kinds = {"mask": shown == mask_id, "kept": shown == targets}
        kinds["random"] = ~(kinds["mask"] | kinds["kept"])
        for kind, where in kinds.items():
            masked[kind].add(losses[where & asked], right[where & asked])

        random_next, is_pair = labels["next_sentence"], weights["next_sentence"] > 0
        losses, right = cross_entropy(outputs["next_sentence"], random_next)
        pairs_are = {"true": random_next == 0, "random": random_next == 1}
        if works is not None:
            same = np.equal(*works[row : row + len(random_next)].T)
            is_random = pairs_are.pop("random")
            pairs_are |= {"same_work": is_random & same, "other_work": is_random & ~same}
        row += len(random_next)
        for kind, where in pairs_are.items():
            pairs[kind].add(losses[where & is_pair], right[where & is_pair])

    scores: dict[str, float] = {}
    for name, kinds in (("masked_lm", masked), ("next_sentence", pairs)):
        total = sum(kinds.values(), _Scores())
        if total.count:
            scores[f"{name}_loss"] = total.loss / total.count
            scores[f"{name}_accuracy"] = total.right / total.count
        for kind, part in kinds.items():
            if part.count and name == "masked_lm":
                scores[f"{name}_loss_{kind}"] = part.loss / part.count
            if part.count:
                scores[f"{name}_accuracy_{kind}"] = part.right / part.count
    return scores


def token_counts(batches: Iterable[Any], vocabulary_size: int) -> np.ndarray:
    """How often each token occurs in masked batches, what was masked included: int64 (V,)."""
    counts = np.zeros(vocabulary_size, np.int64)
    for inputs, labels, weights in map(as_numpy, batches):
        token_ids = inputs["token_ids"].copy()
        row, slot = np.nonzero(weights["masked_lm"])
        token_ids[row, inputs["mask_positions"][row, slot]] = labels["masked_lm"][row, slot]
        counts += np.bincount(token_ids[inputs["padding_mask"] > 0], minlength=vocabulary_size)
    return counts


def unigram_cross_entropy(
    counts: np.ndarray, batches: Iterable[Any], mask_id: int, special_ids: Iterable[int]
) -> float | None:
    """What guessing by frequency alone would score at the [MASK] positions, in nats.

    Args:
        counts: int (V,), how often each token occurs in the training data; one is added to
            each but the special tokens, which are never asked for.
        batches: As for `evaluate_pretraining`.
        mask_id: Of [MASK].
        special_ids: Tokens that can't be an answer.

    Returns:
        The mean of -log((count + 1) / (sum of counts + V)) over the targets; None without any.
    """
    smoothed = counts.astype(np.float64) + 1
    smoothed[list(special_ids)] = 0
    with np.errstate(divide="ignore"):
        surprise = -np.log(smoothed / smoothed.sum())
    total, count = 0.0, 0
    for inputs, labels, weights in map(as_numpy, batches):
        shown = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], axis=1)
        where = (shown == mask_id) & (weights["masked_lm"] > 0)
        total += surprise[labels["masked_lm"][where]].sum()
        count += int(where.sum())
    return total / count if count else None


def masked_examples(
    model: keras.Model, batches: Iterable[Any], tokenizer: WordPiece, count: int = 8
) -> list[list[tuple[str, str, str, float]]]:
    """The first examples with the model's guesses, as the rows of `report.Examples`."""
    inputs, labels, weights = (
        {name: values[:count] for name, values in part.items()}
        for part in as_numpy(next(iter(batches)))
    )
    probabilities = softmax(model.predict_on_batch(inputs)["masked_lm"])
    rows = []
    for i, token_ids in enumerate(inputs["token_ids"]):
        length = int(inputs["padding_mask"][i].sum())
        row = [(tokenizer.vocabulary[t], "text", "", 0.0) for t in token_ids[:length]]
        for slot in np.flatnonzero(weights["masked_lm"][i]):
            position, target = inputs["mask_positions"][i, slot], labels["masked_lm"][i, slot]
            guess = probabilities[i, slot].argmax()
            kind = "kept" if token_ids[position] == target else "random"
            kind = "mask" if token_ids[position] == tokenizer.mask_id else kind
            row[position] = (
                tokenizer.vocabulary[target],
                kind,
                tokenizer.vocabulary[guess],
                float(probabilities[i, slot, guess]),
            )
        rows.append(row)
    return rows


def as_numpy(batch: Any) -> tuple[dict[str, np.ndarray], ...]:
    """A batch of `tf.data` for any backend: JAX and torch don't take TensorFlow's tensors."""
    return tuple({name: np.asarray(values) for name, values in part.items()} for part in batch)


def softmax(logits: Any) -> np.ndarray:
    """Probabilities over the last axis: float64 (...)."""
    odds = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def sigmoid(logits: Any) -> np.ndarray:
    """Independent probabilities: float64 (...)."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, np.float64)))


def cross_entropy(logits: Any, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-log softmax at the targets and whether they come first: float (...), bool (...)."""
    logits = np.asarray(logits, np.float64)
    peak = logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(logits - peak).sum(axis=-1)) + peak[..., 0]
    at_target = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_sum - at_target, logits.argmax(axis=-1) == targets


class _Scores:
    """Sums of losses and right answers, and their number."""

    def __init__(self, loss: float = 0.0, right: int = 0, count: int = 0) -> None:
        self.loss, self.right, self.count = loss, right, count

    def add(self, losses: np.ndarray, right: np.ndarray) -> None:
        self.loss += float(losses.sum())
        self.right += int(right.sum())
        self.count += losses.size

    def __add__(self, other: _Scores) -> _Scores:
        return _Scores(self.loss + other.loss, self.right + other.right, self.count + other.count)
