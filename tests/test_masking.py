import numpy as np
import pytest
import tensorflow as tf

from keras_bert.data.masking import mask_tokens, num_masked

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL_IDS = (PAD, UNK, CLS, SEP, MASK)
VOCABULARY_SIZE = 1000


def rows(lengths, num_tokens, seed=0):
    """[CLS] words [SEP] and padding: token_ids and padding_mask, (B, T)."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(len(SPECIAL_IDS), VOCABULARY_SIZE, (len(lengths), num_tokens))
    padding_mask = np.arange(num_tokens) < np.array(lengths)[:, None]
    token_ids[:, 0] = CLS
    token_ids[np.arange(len(lengths)), np.array(lengths) - 1] = SEP
    return np.where(padding_mask, token_ids, PAD).astype("int32"), padding_mask.astype("int32")


def mask(token_ids, padding_mask, seed=(0, 0), num_positions=20, **kwargs):
    masked = mask_tokens(
        token_ids,
        padding_mask,
        seed,
        num_positions=num_positions,
        mask_id=MASK,
        special_ids=SPECIAL_IDS,
        vocabulary_size=VOCABULARY_SIZE,
        **kwargs,
    )
    return {name: value.numpy() for name, value in masked.items()}


def test_specials_and_padding_are_never_chosen():  # MLM-01
    token_ids, padding_mask = rows([100] * 200 + [128] * 200, 128)
    for seed in range(20):
        masked = mask(token_ids, padding_mask, (seed, 0))
        chosen = np.take_along_axis(token_ids, masked["mask_positions"], 1)
        used = masked["weights"] == 1
        assert not np.isin(chosen[used], SPECIAL_IDS).any()
        np.testing.assert_array_equal(masked["labels"], chosen * used)

        changed = masked["token_ids"] != token_ids
        at = np.zeros_like(changed)
        np.put_along_axis(at, masked["mask_positions"], used, 1)
        assert not (changed & ~at).any()
        assert not np.isin(masked["token_ids"][changed], (PAD, UNK, CLS, SEP)).any()


def test_counts():  # MLM-02
    lengths = [3, 5, 10, 30, 50, 128, 512, 512]
    most = [20, 20, 20, 20, 20, 20, 76, 77]
    expected = [1, 1, 2, 4, 8, 19, 76, 77]
    assert [min(m, num_masked(n)) for n, m in zip(lengths, most, strict=True)] == expected
    for length, num_positions, count in zip(lengths, most, expected, strict=True):
        masked = mask(*rows([length], max(length, 100)), num_positions=num_positions)
        assert masked["weights"].sum() == count
        assert masked["mask_positions"].shape == (1, num_positions)


def test_slots_are_distinct_ascending_and_empty_at_the_end():
    masked = mask(*rows([3, 10, 128], 128))
    for positions, weights, labels in zip(
        masked["mask_positions"], masked["weights"], masked["labels"], strict=True
    ):
        count = int(weights.sum())
        np.testing.assert_array_equal(weights, np.arange(20) < count)
        assert (np.diff(positions[:count]) > 0).all()
        assert not positions[count:].any() and not labels[count:].any()
    assert masked["token_ids"].dtype == masked["mask_positions"].dtype == "int32"
    assert masked["labels"].dtype == "int32" and masked["weights"].dtype == "float32"


def test_rows_without_candidates_and_more_slots_than_tokens():
    token_ids = np.array([[CLS, UNK, SEP], [CLS, 7, SEP], [8, 9, 10]])
    masked = mask(token_ids, np.ones((3, 3), int), num_positions=5, mask_rate=1.0)
    np.testing.assert_array_equal(masked["weights"].sum(-1), [0, 1, 3])
    np.testing.assert_array_equal(masked["labels"][2], [8, 9, 10, 0, 0])
    np.testing.assert_array_equal(masked["token_ids"][0], token_ids[0])


def test_80_10_10():  # MLM-03
    token_ids, padding_mask = rows([512] * 2660, 512)
    masked = mask(token_ids, padding_mask, num_positions=77)
    after = np.take_along_axis(masked["token_ids"], masked["mask_positions"], 1)
    is_masked = after == MASK
    is_kept = after == masked["labels"]
    assert after.size > 200_000
    # A random token is the old one in 1 case of 995, far less than the band.
    assert is_masked.mean() == pytest.approx(0.8, abs=0.0036)
    assert is_kept.mean() == pytest.approx(0.1, abs=0.0027)
    assert (~is_masked & ~is_kept).mean() == pytest.approx(0.1, abs=0.0027)
    # Random tokens come from the whole vocabulary but for the special ids.
    drawn = np.unique(after[~is_masked & ~is_kept])
    np.testing.assert_array_equal(drawn, np.arange(len(SPECIAL_IDS), VOCABULARY_SIZE))
    # Every place is as likely as any other.
    counts = np.bincount(masked["mask_positions"].ravel(), minlength=512)[1:-1]
    assert abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


def test_choices_are_functions_of_the_seed():  # MLM-10
    batch = rows([128] * 4, 128)
    first, again, other = mask(*batch, (7, 0)), mask(*batch, (7, 0)), mask(*batch, (7, 1))
    tf.random.set_seed(3)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    assert (first["mask_positions"] != other["mask_positions"]).any()


def test_bad_rate():
    with pytest.raises(ValueError, match="`mask_rate` must"):
        mask(*rows([5], 5), mask_rate=0.0)
