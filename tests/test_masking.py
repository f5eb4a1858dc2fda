import numpy as np
import pytest
import tensorflow as tf

from keras_bert.data.masking import continuations, mask_tokens, num_masked

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


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_counts(masking):  # MLM-02
    lengths = [3, 5, 10, 30, 50, 128, 512, 512]
    most = [20, 20, 20, 20, 20, 20, 76, 77]
    expected = [1, 1, 2, 4, 8, 19, 76, 77]
    assert [min(m, num_masked(n)) for n, m in zip(lengths, most, strict=True)] == expected
    # Whole words of a token each: they can fill every count.
    for length, num_positions, count in zip(lengths, most, expected, strict=True):
        batch = rows([length], max(length, 100))
        masked = mask(*batch, num_positions=num_positions, masking=masking)
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


def test_bad_arguments():
    for wrong in ({"mask_rate": 0.0}, {"masking": "words"}, {"replacements": "some"}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must"):
            mask(*rows([5], 5), **wrong)


# The last 300 tokens of the vocabulary continue a word.
IS_CONTINUATION = np.arange(VOCABULARY_SIZE) >= 700


def words_of(token_ids, continues=None):
    """The number of each token's word in its row, and whether all of the word may be chosen."""
    joined = IS_CONTINUATION[token_ids] if continues is None else continues > 0
    word = np.cumsum(~joined, 1)
    special = np.isin(token_ids, SPECIAL_IDS)
    whole = np.array(
        [~np.isin(w, w[s]) for w, s in zip(word, special, strict=True)]
    )  # a word of a special token: half a word after [CLS]
    return word, whole


def is_chosen(masked, num_tokens):
    at = np.zeros((len(masked["weights"]), num_tokens), bool)
    rows, slots = np.nonzero(masked["weights"])
    at[rows, masked["mask_positions"][rows, slots]] = True
    return at


def in_parts(chosen, word):
    """Words of which some tokens are chosen and some aren't."""
    ids = word + 1000 * np.arange(len(word))[:, None]
    return set(ids[chosen]) & set(ids[~chosen])


def test_continuations_of_a_vocabulary():
    assert continuations(["[CLS]", "play", "##ing", "##", "#"]).tolist() == [0, 0, 1, 0, 0]


def test_whole_words():  # MLM-01, MLM-02
    lengths = np.random.default_rng(1).integers(20, 129, 400)
    token_ids, padding_mask = rows(lengths, 128)
    word, whole = words_of(token_ids)
    assert (~whole & ~np.isin(token_ids, SPECIAL_IDS)).any()  # half words after [CLS] are there
    seen = np.zeros(token_ids.shape, int)
    for seed in range(20):
        masked = mask(
            token_ids, padding_mask, (seed, 0), masking="whole_word",
            is_continuation=IS_CONTINUATION,
        )  # fmt: skip
        chosen = is_chosen(masked, 128)
        assert not in_parts(chosen, word)
        assert whole[chosen].all()
        np.testing.assert_array_equal(masked["weights"].sum(1), [num_masked(n) for n in lengths])
        seen += chosen
    # Words of one token are a little likelier to be chosen: they always fit the last place.
    alone = ~IS_CONTINUATION[token_ids] & ~np.roll(IS_CONTINUATION[token_ids], -1, 1)
    rate = seen[whole].mean()
    assert seen[whole & alone].mean() == pytest.approx(rate, rel=0.12)
    assert seen[whole & ~alone].mean() == pytest.approx(rate, rel=0.12)


def test_words_too_long_for_the_count_are_passed_over():
    """Two tokens are to be masked: the word of three never is, nor is a half of any."""
    token_ids = np.array([[CLS, 10, 700, 701, 11, 702, 12, 703, SEP, 13, 704, SEP, PAD]])
    mask_of = (token_ids != PAD).astype(int)
    pairs = {(4, 5), (6, 7), (9, 10)}
    found = set()
    for seed in range(40):
        masked = mask(token_ids, mask_of, (seed, 0), masking="whole_word",
                      is_continuation=IS_CONTINUATION)  # fmt: skip
        assert masked["weights"].sum() == 2 == num_masked(12)
        found.add(tuple(masked["mask_positions"][0, :2].tolist()))
    assert found == pairs
    # No word is short enough: none is masked.
    one = mask(token_ids[:, :5], mask_of[:, :5], masking="whole_word", num_positions=1,
               is_continuation=IS_CONTINUATION | (np.arange(VOCABULARY_SIZE) == 11))  # fmt: skip
    assert not one["weights"].any()
    # An unknown token spoils its word.
    unknown = mask(np.array([[CLS, 10, UNK, 11, 12, SEP]]), np.ones((1, 6), int), mask_rate=1.0,
                   masking="whole_word", continues=np.array([[0, 0, 1, 0, 1, 0]]))  # fmt: skip
    assert unknown["mask_positions"][0, :3].tolist() == [3, 4, 0]


def test_chinese_words():  # MLM-05
    token_ids = np.tile([CLS, 10, 11, 12, 13, 14, 15, SEP], (20_000, 1))
    continues = np.tile([0, 0, 1, 0, 1, 0, 1, 0], (20_000, 1))
    masked = mask(token_ids, np.ones_like(token_ids), mask_rate=0.3, num_positions=3,
                  masking="whole_word", continues=continues)  # fmt: skip
    word, _ = words_of(token_ids, continues)
    chosen = is_chosen(masked, 8)
    assert not in_parts(chosen, word)
    assert (masked["weights"].sum(1) == 2).all()
    np.testing.assert_allclose(chosen.mean(0)[1:7], 1 / 3, atol=0.015)  # 4.5 sigma


def test_spans():
    """Counts are exact, and lengths in words those of SpanBERT."""
    lengths = [512] * 300 + [128] * 300 + [30] * 100 + [3, 5, 10]
    token_ids, padding_mask = rows(lengths, 512)
    word, whole = words_of(token_ids)
    masked = mask(token_ids, padding_mask, masking="span", num_positions=77,
                  is_continuation=IS_CONTINUATION)  # fmt: skip
    chosen = is_chosen(masked, 512)
    assert whole[chosen].all()
    candidates = whole & (padding_mask > 0)
    expected = np.minimum([num_masked(n) for n in lengths], candidates.sum(1))
    np.testing.assert_array_equal(masked["weights"].sum(1), expected)
    # At most the last span is cut inside a word.
    ids = word + 1000 * np.arange(len(word))[:, None]
    cut = np.array(sorted(in_parts(chosen, word))) // 1000
    assert len(cut) == len(set(cut)) and ids.shape == chosen.shape


def test_lengths_of_spans():
    """Spans of 1 to 10 words with the shares 0.8 ** n, until ten tokens are masked."""
    token_ids, padding_mask = rows([512] * 10_000, 512)
    token_ids = np.where(IS_CONTINUATION[token_ids], 10, token_ids)  # a token a word
    masked = mask(token_ids, padding_mask, masking="span", mask_rate=10 / 512, num_positions=10)
    assert (masked["weights"].sum(1) == 10).all()
    runs = 1 + (np.diff(masked["mask_positions"], axis=1) != 1).sum(1)

    shares = 0.8 ** np.arange(1, 11)
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.arange(1, 11), (10_000, 10), p=shares / shares.sum())
    assert drawn.mean() == pytest.approx(3.8, abs=0.05)
    expected = 1 + (np.cumsum(drawn, 1) < 10).sum(1)
    # Spans touch, or end at [SEP], in a row out of forty.
    assert runs.mean() == pytest.approx(expected.mean(), abs=0.06)
    assert (runs == 1).mean() == pytest.approx((expected == 1).mean(), abs=0.012)


def test_tokens_of_a_span_share_their_fate():
    token_ids, padding_mask = rows([512] * 400, 512)
    masked = mask(token_ids, padding_mask, masking="span", num_positions=77)
    after = np.take_along_axis(masked["token_ids"], masked["mask_positions"], 1)
    is_masked = after == MASK
    next_to = np.diff(masked["mask_positions"], axis=1) == 1
    same = is_masked[:, 1:] == is_masked[:, :-1]
    # Neighbours are of one span but where two spans touch; apart, they'd agree in 68 %.
    assert same[next_to].mean() > 0.93
    assert same[~next_to].mean() == pytest.approx(0.68, abs=0.03)


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_shares_over_100_000_examples(masking):  # MLM-01, MLM-02, MLM-03
    counts, chosen, lengths = np.zeros(3, int), 0, np.tile([20, 33, 47, 64], 5000)
    token_ids, padding_mask = rows(lengths, 64)
    expected = np.array([num_masked(n) for n in lengths])
    for seed in range(5):
        masked = mask(token_ids, padding_mask, (seed, 1), masking=masking, num_positions=10,
                      is_continuation=IS_CONTINUATION)  # fmt: skip
        used = masked["weights"] > 0
        if masking == "token":
            np.testing.assert_array_equal(used.sum(1), expected)
        before = np.take_along_axis(token_ids, masked["mask_positions"], 1)
        assert not np.isin(before[used], SPECIAL_IDS).any()
        after = np.take_along_axis(masked["token_ids"], masked["mask_positions"], 1)[used]
        labels = masked["labels"][used]
        counts += [(after == MASK).sum(), (after == labels).sum(),
                   ((after != MASK) & (after != labels)).sum()]  # fmt: skip
        chosen += used.sum()
    # The independent draws: tokens, or spans of 2.6 tokens or so, whose sizes vary.
    draws = chosen / (1 if masking != "span" else 8)
    for share, count in zip((0.8, 0.1, 0.1), counts, strict=True):
        sigma = (share * (1 - share) / draws) ** 0.5
        assert abs(count / chosen - share) < 4 * sigma + 0.1 / 995


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_every_mode_is_a_function_of_the_seed(masking):  # MLM-10
    batch = rows([128] * 8, 128)
    first, again, other = (
        mask(*batch, seed, masking=masking, is_continuation=IS_CONTINUATION)
        for seed in ((7, 0), (7, 0), (7, 1))
    )
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    assert (first["mask_positions"] != other["mask_positions"]).any()


def test_replacements_from_all():
    token_ids, padding_mask = rows([512] * 2000, 512)
    masked = mask(token_ids, padding_mask, num_positions=77, replacements="all")
    after = np.take_along_axis(masked["token_ids"], masked["mask_positions"], 1)
    assert set(SPECIAL_IDS) <= set(np.unique(after))
