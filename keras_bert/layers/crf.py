"""A linear-chain conditional random field: tags that go together, chosen together."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

# Marks at tokens without a tag: no word's first; the first of a sequence, where a chain begins.
SKIPPED, RESTART = -1, -2


@keras.saving.register_keras_serializable("keras_bert")
class Crf(keras.layers.Layer):
    """Adds to each token's logits the scores of the transitions into its classes.

    The output is all that a sequence of tags is scored by: its loss, `CrfLoss`, and the best
    sequence, `viterbi`, are functions of it alone. Both go from word to word and skip the tokens
    between.

    Call arguments:
        logits: float (B, T, C).

    Returns:
        float (B, T, C + 1, C): row 0 of a token scores its classes at a chain's start, row 1 + i
        behind a word of class i.

    References:
        - [Lafferty et al., 2001](https://repository.upenn.edu/cis_papers/159), section 3.
        - [Lample et al., 2016](https://arxiv.org/abs/1603.01360), section 2.2.
    """

    def build(self, logits_shape: tuple[int | None, ...]) -> None:
        classes: Any = logits_shape[-1]
        self.transitions = self.add_weight(
            name="transitions", shape=(classes + 1, classes), initializer="zeros"
        )

    def call(self, logits: Any) -> Any:
        return logits[:, :, None, :] + ops.cast(self.transitions, logits.dtype)

    def compute_output_shape(self, logits_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        classes: Any = logits_shape[-1]
        return (*logits_shape[:2], classes + 1, classes)


@keras.saving.register_keras_serializable("keras_bert")
class CrfLoss(keras.losses.Loss):
    """-log p(tags | words), shared out among the words: float (B, T), 0 where there's none.

    A word's share is what it adds to the log of the sum over all sequences of tags, less what it
    adds to the true one's score. The shares add up to the exact loss, so that with the weight 1
    at words and 0 elsewhere its mean is in nats a word.

    Call arguments:
        y_true: int (B, T), a word's class at its first token, -1 at other tokens, and -2 at the
            first token of each sequence, such as [CLS], behind which a chain begins.
        y_pred: float (B, T, C + 1, C), from `Crf`.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        scores = _by_time(y_pred, y_true)

        def step(carry: Any, at: Any) -> Any:
            # `log_p`: of each class at the word before, by the words up to it.
            log_p, before, begins, _ = carry
            potential, mark = _parts(at)
            is_word = mark >= 0
            label = ops.maximum(mark, 0)
            summed = ops.where(
                begins[:, None],
                potential[:, 0],
                ops.logsumexp(log_p[:, :, None] + potential[:, 1:], axis=1),
            )
            total = ops.logsumexp(summed, axis=-1, keepdims=True)
            row = ops.where(begins, 0, before + 1)
            true = ops.take_along_axis(potential, row[:, None, None], axis=1)[:, 0]
            true = ops.take_along_axis(true, label[:, None], axis=1)
            share = ops.where(is_word, (total - true)[:, 0], 0.0)
            log_p = ops.where(is_word[:, None], summed - total, log_p)
            before = ops.where(is_word, label, before)
            carry = log_p, before, _begins(mark, begins), share
            return carry, carry  # TensorFlow's scan gives out what's like the carry alone

        zeros = ops.zeros_like(scores[0, :, 0, :])
        none = ops.cast(zeros[:, 0], "int32")
        start = (zeros, none, ops.ones_like(none, dtype="bool"), zeros[:, 0])
        _, (*_, shares) = ops.scan(step, start, scores)
        return ops.transpose(shares)


def viterbi(potentials: Any, marks: Any) -> Any:
    """The likeliest sequences of classes.

    Args:
        potentials: float (B, T, C + 1, C), from `Crf`.
        marks: int (B, T), 0 or more at each word's first token, else -1 and -2 as in the labels
            of `CrfLoss`. Without a -2, each row is one chain.

    Returns:
        int32 (B, T), the class of each word at its first token; elsewhere that of a word beside.

    References:
        - [Viterbi, 1967](https://doi.org/10.1109/TIT.1967.1054010).
    """
    scores = _by_time(potentials, marks)
    classes = ops.arange(scores.shape[-1], dtype="int32")[None]

    def forward(carry: Any, at: Any) -> Any:
        best, begins, _ = carry  # the best score of a sequence so far, by its last class: (B, C)
        potential, mark = _parts(at)
        # A chain that begins goes on from whatever the one before it ended in.
        row = ops.where(begins[:, None, None], potential[:, :1], potential[:, 1:])
        reached = best[:, :, None] + row
        is_word = (mark >= 0)[:, None]
        came_from = ops.where(is_word, ops.cast(ops.argmax(reached, axis=1), "int32"), classes)
        best = ops.where(is_word, ops.max(reached, axis=1), best)
        best = best - ops.max(best, axis=-1, keepdims=True)
        carry = best, _begins(mark, begins), came_from
        return carry, carry

    def backward(last: Any, came_from: Any) -> Any:
        return ops.take_along_axis(came_from, last[:, None], axis=1)[:, 0], last

    zeros = ops.zeros_like(scores[0, :, 0, :])
    start = (zeros, ops.ones_like(zeros[:, 0], dtype="bool"), ops.cast(zeros, "int32"))
    (best, *_), (*_, came_from) = ops.scan(forward, start, scores)
    last = ops.cast(ops.argmax(best, axis=-1), "int32")
    _, path = ops.scan(backward, last, came_from, reverse=True)
    return ops.transpose(path)


def _by_time(potentials: Any, marks: Any) -> Any:
    """Tokens first, and the marks as one more row of the scores: float32 (T, B, C + 2, C).

    One array, as TensorFlow's scan takes several only where T is known to the graph.
    """
    scores = ops.cast(potentials, "float32")
    row = ops.cast(marks, "float32")[:, :, None, None] * ops.ones_like(scores[:, :, :1])
    return ops.transpose(ops.concatenate([scores, row], axis=2), (1, 0, 2, 3))


def _parts(at: Any) -> tuple[Any, Any]:
    """The scores and the marks at one token: float (B, C + 1, C), int32 (B,)."""
    return at[:, :-1], ops.cast(at[:, -1, 0], "int32")


def _begins(mark: Any, begins: Any) -> Any:
    """Whether the next word is the first of its chain: bool (B,)."""
    return ops.logical_or(ops.equal(mark, RESTART), ops.logical_and(begins, mark < 0))
