"""Masked language modelling: which tokens are hidden, and behind what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

Masking = Literal["token", "whole_word", "span"]
Replacements = Literal["ordinary", "all"]

# Lengths of spans in words: SpanBERT's geometric distribution, and the longest of them.
SPAN_STOP = 0.2
LONGEST_SPAN = 10


def num_masked(length: int, mask_rate: float = 0.15) -> int:
    """Tokens to mask in a sequence of `length` tokens, specials included: at least one.

    The rule of the original code: `length * mask_rate`, halves rounded to even (30 tokens at
    0.15 give 4).
    """
    return min(length, max(1, round(length * mask_rate)))


def continuations(vocabulary: Sequence[str]) -> np.ndarray:
    """Which tokens continue a word, such as `##ing`: bool (V,)."""
    return np.array([piece.startswith("##") and piece != "##" for piece in vocabulary])


def mask_tokens(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    seed: tf.Tensor | Sequence[int],
    *,
    masking: Masking = "token",
    mask_rate: float = 0.15,
    num_positions: int,
    mask_id: int,
    special_ids: Sequence[int],
    vocabulary_size: int,
    is_continuation: np.ndarray | None = None,
    continues: tf.Tensor | None = None,
    replacements: Replacements = "ordinary",
) -> dict[str, tf.Tensor]:
    """Masks `num_masked` tokens of each row; all choices are functions of `seed` alone.

    `masking` says which tokens are chosen together:

    - "token": none; every ordinary token is as likely to be chosen as any other.
    - "whole_word": all tokens of a word. Words are taken in random order; one with more tokens
      than are left to choose is passed over, as in the original code. So a row has exactly
      `num_masked` tokens chosen unless it has no words left that are short enough; then it has
      fewer, never a part of a word. A word with an unknown token in it, and the rest of one
      whose beginning was cut off at the left edge of a text, are passed over too. The beginning
      of a word whose rest was cut off at the right edge counts as a word.
    - "span": runs of words, of geometric lengths (p = 0.2, at most 10, on average 3.8), each
      from the word of a random token that isn't chosen yet to the run's end or to a special
      token. The last one ends where `num_masked` is reached, if need be inside a word.

    Of the chosen tokens 80 % become [MASK], 10 % a random token, and 10 % stay: each on its
    own, or with "span" the tokens of a span alike. Special tokens and padding are never chosen.

    A word begins at each token that neither `is_continuation` nor `continues` joins to the one
    before it.

    Shapes: B batch, T tokens, V `vocabulary_size`, M `num_positions`.

    Args:
        token_ids: int (B, T).
        padding_mask: int (B, T), 0 at padding.
        seed: int (2,), for TensorFlow's stateless random numbers.
        masking: See above.
        mask_rate: Share of a row's tokens, specials included, that are chosen.
        num_positions: M, the most that are chosen in a row.
        mask_id: Id of [MASK].
        special_ids: Ids that are never chosen; holds `mask_id`.
        vocabulary_size: V, random tokens are drawn below it.
        is_continuation: bool (V,), from `continuations`. None: no token continues a word.
        continues: int (B, T), 1 where a segmenter says that a token continues the word of the
            one before it, such as the second character of a Chinese word. None: zeros.
        replacements: Random tokens are drawn from the "ordinary" tokens or from "all", special
            ones included, as in the original code.

    Returns:
        `token_ids` int32 (B, T), masked; `mask_positions` int32 (B, M), ascending; `labels`
        int32 (B, M), the original ids there; `weights` float32 (B, M). A slot that isn't used
        has position 0, label 0, weight 0, and comes after those that are.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1 and appendix A.1.
        - [Cui et al., 2019](https://arxiv.org/abs/1906.08101), on whole words in Chinese.
        - [Joshi et al., 2019](https://arxiv.org/abs/1907.10529), section 3.1, on spans.
    """
    _check(masking, mask_rate, replacements)
    token_ids = tf.cast(token_ids, tf.int32)
    is_token = tf.not_equal(padding_mask, 0)  # (B, T)
    is_special = tf.reduce_any(token_ids[..., None] == np.asarray(special_ids, "int32"), axis=-1)
    choice_seed, kind_seed, token_seed = tf.unstack(tf.random.split(seed, 3))

    joined = tf.zeros_like(is_token)
    if masking != "token" and is_continuation is not None:
        joined |= tf.gather(tf.constant(is_continuation), token_ids)
    if masking != "token" and continues is not None:
        joined |= tf.not_equal(continues, 0)
    words = _Words(is_token, is_token & ~is_special, joined)
    count = tf.minimum(_count(is_token, mask_rate), num_positions)
    choose = _spans if masking == "span" else _whole_words
    unit = choose(words, count, choice_seed)  # (B, T)
    positions, weights = _slots(unit >= 0, num_positions)
    labels = tf.gather(token_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32)

    drawn_from = np.arange(vocabulary_size, dtype="int32")
    if replacements == "ordinary":
        drawn_from = np.setdiff1d(drawn_from, np.asarray(special_ids, "int32"))
    # Tokens of one unit share their fate.
    kind = tf.random.stateless_uniform(tf.shape(token_ids), kind_seed)  # (B, T)
    unit_of_slot = tf.maximum(tf.gather(unit, positions, batch_dims=1), 0)
    kind = tf.gather(kind, unit_of_slot, batch_dims=1)  # (B, M)
    drawn = tf.random.stateless_uniform(
        tf.shape(positions), token_seed, 0, len(drawn_from), tf.int32
    )
    shown = tf.where(kind < 0.9, tf.gather(drawn_from, drawn), labels)
    shown = tf.where(kind < 0.8, mask_id, shown)
    return {
        "token_ids": _put(token_ids, positions, weights, shown),
        "mask_positions": positions,
        "labels": labels,
        "weights": weights,
    }


def _check(masking: Any, mask_rate: float, replacements: Any) -> None:
    for name, value, choices in (
        ("masking", masking, get_args(Masking)),
        ("replacements", replacements, get_args(Replacements)),
    ):
        if value not in choices:
            raise ValueError(
                f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}."
            )
    if not 0.0 < mask_rate <= 1.0:
        raise ValueError(
            f"`mask_rate` must be above 0 and at most 1. Received: mask_rate={mask_rate}."
        )


class _Words:
    """Where the words of a batch lie.

    Attributes:
        index: int32 (B, T), the number of a token's word in its row.
        sizes: int32 (B, T), the tokens of the row's words in order, then zeros; 0 also for a
            word that can't be chosen.
        is_candidate: bool (B, T), whether a token's word can be chosen: all its tokens can.
    """

    def __init__(self, is_token: tf.Tensor, is_ordinary: tf.Tensor, joined: tf.Tensor) -> None:
        begins = tf.cast(~(joined & is_token), tf.int32)
        # Half a word after [CLS] or [SEP] belongs to that token, and can't be chosen either.
        self.index = tf.cumsum(begins, axis=1) - begins[:, :1]
        num_rows, num_tokens = tf.unstack(tf.shape(is_token))
        shape = tf.shape(is_token)
        flat = tf.reshape(self.index + tf.range(num_rows)[:, None] * num_tokens, [-1])

        def in_words(x: tf.Tensor) -> tf.Tensor:
            x = tf.reshape(tf.cast(x, tf.int32), [-1])
            return tf.reshape(tf.math.unsorted_segment_sum(x, flat, num_rows * num_tokens), shape)

        sizes, spoilt = in_words(is_token), in_words(~is_ordinary)
        self.sizes = tf.where(spoilt == 0, sizes, 0)
        self.is_candidate = tf.gather(self.sizes, self.index, batch_dims=1) > 0


def _count(is_token: tf.Tensor, mask_rate: float) -> tf.Tensor:
    """`num_masked` of each row: int32 (B,)."""
    # float64, as in `num_masked`: a product that is a half must be one exactly.
    length = tf.reduce_sum(tf.cast(is_token, tf.float64), axis=-1)
    return tf.cast(tf.maximum(tf.round(length * mask_rate), 1.0), tf.int32)


def _whole_words(words: _Words, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Chooses words in random order: int32 (B, T), a chosen token's own position, else -1."""
    num_rows, num_tokens = tf.unstack(tf.shape(words.index))
    order = tf.argsort(tf.random.stateless_uniform((num_rows, num_tokens), seed), axis=-1)
    sizes = tf.gather(words.sizes, order, batch_dims=1)  # (B, T), by the order of the draw

    def fits(taken: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
        return ~taken & (sizes > 0) & (sizes <= left[:, None])

    # A round takes words up to the first that's too long for what is left; the next round
    # passes over that one. What is left is less each time, so there are few rounds.
    def one_round(taken: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        offered = tf.where(fits(taken, left), sizes, 0)
        new = (offered > 0) & (tf.cumsum(offered, axis=1) <= left[:, None])
        return taken | new, left - tf.reduce_sum(tf.where(new, sizes, 0), axis=1)

    taken, _ = tf.while_loop(
        lambda taken, left: tf.reduce_any(fits(taken, left)),
        one_round,
        (tf.zeros_like(sizes, tf.bool), count),
    )
    # Back into the order of the words.
    places = tf.reshape(order + tf.range(num_rows)[:, None] * num_tokens, [-1, 1])
    by_word = tf.scatter_nd(places, tf.reshape(tf.cast(taken, tf.int32), [-1]), [tf.size(order)])
    by_word = tf.reshape(by_word, tf.shape(order))
    chosen = tf.gather(by_word, words.index, batch_dims=1) > 0
    return tf.where(chosen, tf.range(num_tokens), -1)


def _spans(words: _Words, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Chooses spans: int32 (B, T), the token at which a chosen token's span was begun, else -1."""
    shape = tf.shape(words.index)
    first_seed, length_seed = tf.unstack(tf.random.split(seed, 2))
    scores = tf.random.stateless_uniform(shape, first_seed)
    shares = (1 - SPAN_STOP) ** np.arange(LONGEST_SPAN)
    up_to = np.cumsum(shares / shares.sum())[:-1].astype("float32")
    drawn = tf.random.stateless_uniform(shape, length_seed)
    lengths = 1 + tf.reshape(tf.searchsorted(up_to, tf.reshape(drawn, [-1]), "right"), shape)
    stretch = tf.cumsum(tf.cast(~words.is_candidate, tf.int32), axis=1)

    def one_span(unit: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        free = words.is_candidate & (unit < 0)
        first = tf.argmax(tf.where(free, scores, -1.0), axis=1, output_type=tf.int32)[:, None]

        def at_first(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(x, first, batch_dims=1)  # (B, 1)

        distance = words.index - at_first(words.index)  # in words
        within = (distance >= 0) & (distance < at_first(lengths))
        within &= free & (stretch == at_first(stretch))
        within &= tf.cumsum(tf.cast(within, tf.int32), axis=1) <= left[:, None]
        left -= tf.reduce_sum(tf.cast(within, tf.int32), axis=1)
        return tf.where(within, first, unit), left

    num_candidates = tf.reduce_sum(tf.cast(words.is_candidate, tf.int32), axis=-1)
    unit, _ = tf.while_loop(
        lambda unit, left: tf.reduce_any(left > 0),
        one_span,
        (tf.fill(shape, -1), tf.minimum(count, num_candidates)),
    )
    return unit


def _slots(chosen: tf.Tensor, num_positions: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns positions int32 (B, M), ascending, and weights float32 (B, M)."""
    places = tf.where(chosen)  # row by row, ascending
    slot = tf.gather_nd(tf.cumsum(tf.cast(chosen, tf.int64), axis=1), places) - 1
    where = tf.stack([places[:, 0], slot], axis=1)
    shape = tf.stack([tf.shape(chosen, tf.int64)[0], tf.constant(num_positions, tf.int64)])
    positions = tf.scatter_nd(where, tf.cast(places[:, 1], tf.int32), shape)
    weights = tf.scatter_nd(where, tf.ones_like(slot, tf.float32), shape)
    static = (chosen.shape[0], num_positions)
    return tf.ensure_shape(positions, static), tf.ensure_shape(weights, static)


def _put(
    token_ids: tf.Tensor, positions: tf.Tensor, weights: tf.Tensor, shown: tf.Tensor
) -> tf.Tensor:
    """Writes the tokens shown into their places; those of weight 0 nowhere."""
    num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
    places = tf.where(weights > 0, positions, num_tokens)  # column T is thrown away
    rows = tf.broadcast_to(tf.range(num_rows)[:, None], tf.shape(places))
    padded = tf.pad(token_ids, [[0, 0], [0, 1]])
    masked = tf.tensor_scatter_nd_update(padded, tf.stack([rows, places], -1), shown)
    return tf.ensure_shape(masked[:, :-1], token_ids.shape)
