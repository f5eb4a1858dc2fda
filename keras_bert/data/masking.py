"""Masked language modelling: which tokens are hidden, and behind what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def num_masked(length: int, mask_rate: float = 0.15) -> int:
    """Tokens to mask in a sequence of `length` tokens, specials included: at least one.

    The rule of the original code: `length * mask_rate`, halves rounded to even (30 tokens at
    0.15 give 4).
    """
    return min(length, max(1, round(length * mask_rate)))


def mask_tokens(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    seed: tf.Tensor | Sequence[int],
    *,
    mask_rate: float = 0.15,
    num_positions: int,
    mask_id: int,
    special_ids: Sequence[int],
    vocabulary_size: int,
) -> dict[str, tf.Tensor]:
    """Masks `num_masked` tokens of each row; all choices are functions of `seed` alone.

    Every ordinary token is as likely to be chosen as any other. Of the chosen ones 80 % become
    [MASK], 10 % a random ordinary token, and 10 % stay. Special tokens and padding are neither
    chosen nor put in.

    Shapes: B batch, T tokens, M `num_positions`.

    Args:
        token_ids: int (B, T).
        padding_mask: int (B, T), 0 at padding.
        seed: int (2,), for TensorFlow's stateless random numbers.
        mask_rate: Share of a row's tokens, specials included, that are chosen.
        num_positions: M, the most that are chosen in a row.
        mask_id: Id of [MASK].
        special_ids: Ids that are never chosen and never put in; holds `mask_id`.
        vocabulary_size: Random tokens are drawn below it.

    Returns:
        `token_ids` int32 (B, T), masked; `mask_positions` int32 (B, M), ascending; `labels`
        int32 (B, M), the original ids there; `weights` float32 (B, M). A slot that isn't used
        has position 0, label 0, weight 0, and comes after those that are.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1 and appendix A.1.
    """
    if not 0.0 < mask_rate <= 1.0:
        raise ValueError(
            f"`mask_rate` must be above 0 and at most 1. Received: mask_rate={mask_rate}."
        )
    ordinary = np.setdiff1d(np.arange(vocabulary_size), np.asarray(special_ids)).astype("int32")
    token_ids = tf.cast(token_ids, tf.int32)
    is_token = tf.not_equal(padding_mask, 0)  # (B, T)
    is_special = tf.reduce_any(token_ids[..., None] == np.asarray(special_ids, "int32"), axis=-1)
    position_seed, kind_seed, token_seed = tf.unstack(tf.random.split(seed, 3))

    positions, weights = _choose(is_token, is_special, position_seed, mask_rate, num_positions)
    labels = tf.gather(token_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32)

    shape = tf.shape(positions)
    kind = tf.random.stateless_uniform(shape, kind_seed)  # (B, M)
    drawn = tf.random.stateless_uniform(shape, token_seed, 0, len(ordinary), tf.int32)
    replacements = tf.where(kind < 0.9, tf.gather(ordinary, drawn), labels)
    replacements = tf.where(kind < 0.8, mask_id, replacements)
    return {
        "token_ids": _put(token_ids, positions, weights, replacements),
        "mask_positions": positions,
        "labels": labels,
        "weights": weights,
    }


def _choose(
    is_token: tf.Tensor,
    is_special: tf.Tensor,
    seed: tf.Tensor,
    mask_rate: float,
    num_positions: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns positions int32 (B, M), ascending, and weights float32 (B, M)."""
    num_rows, num_tokens = tf.unstack(tf.shape(is_token))
    is_candidate = is_token & ~is_special  # (B, T)

    # float64, as in `num_masked`: a product that is a half must be one exactly.
    length = tf.reduce_sum(tf.cast(is_token, tf.float64), axis=-1)
    count = tf.cast(tf.maximum(tf.round(length * mask_rate), 1.0), tf.int32)
    count = tf.minimum(count, tf.reduce_sum(tf.cast(is_candidate, tf.int32), axis=-1))  # (B,)

    # The highest of independent random scores are a random subset of the candidates.
    scores = tf.random.stateless_uniform((num_rows, num_tokens), seed)
    scores = tf.where(is_candidate, scores, -1.0)
    num_slots = min(num_positions, is_token.shape[1] or num_positions)
    chosen = tf.math.top_k(scores, num_slots).indices  # (B, M)
    chosen = tf.pad(chosen, [[0, 0], [0, num_positions - num_slots]])

    # Unused slots sort to the end as position T.
    is_used = tf.range(num_positions) < count[:, None]
    chosen = tf.sort(tf.where(is_used, chosen, num_tokens), axis=-1)
    is_used = chosen < num_tokens
    return tf.where(is_used, chosen, 0), tf.cast(is_used, tf.float32)


def _put(
    token_ids: tf.Tensor, positions: tf.Tensor, weights: tf.Tensor, replacements: tf.Tensor
) -> tf.Tensor:
    """Writes the replacements into their places; those of weight 0 nowhere."""
    num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
    places = tf.where(weights > 0, positions, num_tokens)  # column T is thrown away
    rows = tf.broadcast_to(tf.range(num_rows)[:, None], tf.shape(places))
    padded = tf.pad(token_ids, [[0, 0], [0, 1]])
    masked = tf.tensor_scatter_nd_update(padded, tf.stack([rows, places], -1), replacements)
    return tf.ensure_shape(masked[:, :-1], token_ids.shape)
