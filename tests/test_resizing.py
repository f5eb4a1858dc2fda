"""Other tables for a preset: what's kept, what's new, and what stays as it was."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
from conftest import TESTS
from safetensors.numpy import save_file
from test_golden import formula_name, formula_weights

import keras_bert
from keras_bert import resizing
from keras_bert.checkpoints import huggingface
from keras_bert.checkpoints.preset import TASKS
from keras_bert.errors import InputError

VOCABULARY = [
    "[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good",
    "ab", "a", "b", "c", "##b", "##c", "##bc", "##d", "play", "##ing", "好", "!",
]  # fmt: skip
ROWS = 24  # two more than tokens
ARGUMENTS = {"text_classifier": {"num_classes": 3, "dropout": 0.3},
             "token_classifier": {"num_classes": 4}}  # fmt: skip
TOKENS, BIAS = resizing.EMBEDDINGS, resizing.OUTPUT_BIAS


def make(task="pretraining", **settings):
    config = keras_bert.BertConfig(
        vocabulary_size=ROWS, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=12, initializer_range=0.3, norm_epsilon=1e-7, dropout=0.2,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    model = encoder if task == "encoder" else TASKS[task](encoder, **ARGUMENTS.get(task, {}))
    for weight in model.weights:
        if weight.path == BIAS:
            weight.assign(np.linspace(-1, 1, ROWS))
    labels = ("x", "y", "z") if task == "text_classifier" else ()
    tokenizer = keras_bert.WordPiece(VOCABULARY, lowercase=True, max_chars_per_word=20)
    return keras_bert.Preset(config, encoder, tokenizer, model, labels, settings)


def values(preset):
    found = [*preset.encoder.weights, *preset.model.weights]
    return {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in found}


def outputs(preset, texts, positions=(1, 2)):
    """Outputs for each text; multiple choice gets the texts as the choices."""
    rows = [preset.tokenizer.encode(text).token_ids for text in texts]
    assert len({len(row) for row in rows}) == 1
    ids = np.array(rows, "int32")
    ids = ids[None] if preset.model.name == "multiple_choice" else ids
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1,
              "mask_positions": np.tile(np.array(positions, "int32"), (len(rows), 1))}  # fmt: skip
    inputs = {name: x for name, x in inputs.items() if name in preset.model.input}
    return {name: keras.ops.convert_to_numpy(x) for name, x in preset.model(inputs).items()}


def new_id(old, new, i):
    return new.tokenizer.vocabulary.index(old.tokenizer.vocabulary[i])


# Adding.


@pytest.mark.parametrize("task", ["encoder", *TASKS])
def test_added_tokens_start_as_the_mean_of_their_pieces(task):
    old = make(task)
    before = values(old)
    new = resizing.add_tokens(old, ["playings", "good", "##bs", "playings", "q"])
    assert new.tokenizer.vocabulary == [*VOCABULARY, "playings", "##bs", "q"]
    after = values(new)
    assert (new.model.name, new.labels) == (old.model.name, old.labels)
    assert new.config.vocabulary_size == ROWS + 1
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    pieces = [[ids["play"], ids["##ing"], ids["##s"]], [ids["##b"], ids["##s"]], [ids["[UNK]"]]]
    for path in {TOKENS, BIAS} & set(before):
        assert len(after[path]) == ROWS + 1
        np.testing.assert_array_equal(after[path][: len(ids)], before[path][: len(ids)])
        for row, sources in zip(after[path][len(ids) :], pieces):
            np.testing.assert_allclose(row, before[path][sources].mean(axis=0), rtol=1e-6)
    for path in set(before) - {TOKENS, BIAS}:
        np.testing.assert_array_equal(after[path], before[path])
    assert old.tokenizer.vocabulary == VOCABULARY
    for path, value in values(old).items():
        np.testing.assert_array_equal(value, before[path])
    assert new.tokenizer.tokenize("Playings q abs") == ["playings", "q", "ab", "##s"]
    for name, output in outputs(old, ["hello ab", "good 好"]).items():
        again = outputs(new, ["hello ab", "good 好"])[name]
        again = again[..., : len(ids)] if name == "masked_lm" else again
        output = output[..., : len(ids)] if name == "masked_lm" else output
        np.testing.assert_allclose(again, output, rtol=0, atol=1e-6)


def test_logit_of_an_added_token_is_the_mean_of_its_pieces():
    old = make("masked_lm")
    new = resizing.add_tokens(old, ["playing"])
    [logits] = outputs(new, ["hello world"], [1])["masked_lm"]
    pieces = [VOCABULARY.index("play"), VOCABULARY.index("##ing")]
    np.testing.assert_allclose(logits[0, len(VOCABULARY)], logits[0, pieces].mean(), atol=1e-5)


def test_tie_stays():
    new = resizing.add_tokens(make("masked_lm"), ["playing"])
    table = new.encoder.get_layer("token_embedding").embeddings
    before = outputs(new, ["hello world"])["masked_lm"]
    table.assign(table.value * 2)
    assert np.abs(outputs(new, ["hello world"])["masked_lm"] - before).max() > 1e-4
    assert sum(weight.path == TOKENS for weight in new.model.weights) == 1


def test_unused_rows_are_used_up_first():
    old = make()
    new = resizing.add_tokens(old, ["playing"])
    assert new.config.vocabulary_size == ROWS
    np.testing.assert_array_equal(values(new)[TOKENS][-1], values(old)[TOKENS][-1])
    same = resizing.add_tokens(old, ["good"])
    assert same.model is not old.model
    np.testing.assert_array_equal(values(same)[TOKENS], values(old)[TOKENS])


@pytest.mark.parametrize(
    ("token", "message"),
    [("new york", "'new', 'york' of 'new york'"), ("o'clock", "makes 'o', \"'\", 'clock'"),
     ("Berlin", "makes 'berlin' of"), ("naïve", "makes 'naive' of"), ("你好", "makes '你', '好'"),
     ("[NEW]", "makes '\\[', 'new', '\\]'"), ("", "makes nothing of ''"), ("##", "must be one"),
     ("##好", "makes 'a', '好' of 'a好'"), ("##x y", "makes 'ax', 'y'"), ("##!", "makes 'a', '!'"),
     ("x" * 21, "at most 20 letters"), ("##" + "x" * 20, "at most 20 letters"),
     ("\u200b", "makes nothing"), ("###", "makes 'a', '#'")],
)  # fmt: skip
def test_tokens_that_no_text_becomes(token, message):
    with pytest.raises(ValueError, match=message):
        resizing.add_tokens(make(), [token])


def test_wrong_types():
    for wrong in ("word", [3], [None]):
        with pytest.raises(TypeError, match="`tokens` must"):
            resizing.add_tokens(make(), wrong)
    with pytest.raises(TypeError, match="`texts` must be a list"):
        resizing.trim_vocabulary(make(), "word")


# Trimming.


@pytest.mark.parametrize("task", ["encoder", *TASKS])
def test_trimmed_vocabulary(task):
    old = make(task)
    texts = ["hello ab!", "good abc!"]  # ab + ##c, although a + ##bc would do
    new = resizing.trim_vocabulary(old, iter(texts))
    assert new.tokenizer.vocabulary == [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "good", "ab", "a", "b", "c",
        "##b", "##c", "##d", "!",
    ]  # fmt: skip
    assert new.config.vocabulary_size == 15
    assert (new.tokenizer.pad_id, new.tokenizer.mask_id) == (0, 4)
    for text in texts:
        assert new.tokenizer.tokenize(text) == old.tokenizer.tokenize(text)
    assert new.tokenizer.get_config() == old.tokenizer.get_config()
    kept = [VOCABULARY.index(token) for token in new.tokenizer.vocabulary]
    before, after = values(old), values(new)
    for path, value in before.items():
        expected = value[kept] if path in (TOKENS, BIAS) else value
        np.testing.assert_array_equal(after[path], expected)
    first, again = outputs(old, ["hello ab!", "good ab!"]), outputs(new, ["hello ab!", "good ab!"])
    for name, output in first.items():
        output = output[..., kept] if name == "masked_lm" else output
        np.testing.assert_allclose(again[name], output, rtol=0, atol=1e-6)


def test_an_unknown_word_stays_unknown():
    """`abb` fails after ab; without ab, a + ##bb would spell it."""
    old = make()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "a", "##bb", "good"]
    vocabulary += [f"w{i}" for i in range(ROWS - len(vocabulary))]
    old = dataclasses.replace(old, tokenizer=keras_bert.WordPiece(vocabulary))
    assert old.tokenizer.tokenize("abb good") == ["[UNK]", "good"]
    new = resizing.trim_vocabulary(old, ["abb good"])
    assert new.tokenizer.tokenize("abb good") == ["[UNK]", "good"]
    assert "w0" not in new.tokenizer.vocabulary


def test_random_texts_keep_their_tokens():
    rng = np.random.default_rng(0)
    letters = ["a", "b", "c"]
    pieces = {"".join(rng.choice(letters, rng.integers(1, 5))) for _ in range(40)}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    changed = 0
    for _ in range(6):
        chosen = [p for p in sorted(pieces) if rng.random() < 0.5]
        chosen += [f"##{p}" for p in sorted(pieces) if rng.random() < 0.5]
        vocabulary = special + [str(p) for p in rng.permutation(chosen)]
        tokenizer = keras_bert.WordPiece(vocabulary)
        config = keras_bert.BertConfig(vocabulary_size=len(vocabulary), num_layers=1, num_heads=1,
                                       hidden_dim=2, intermediate_dim=2)  # fmt: skip
        encoder = keras_bert.bert(config)
        preset = keras_bert.Preset(config, encoder, tokenizer, encoder)
        texts = [
            " ".join("".join(rng.choice(letters, rng.integers(1, 9))) for _ in range(3))
            for _ in range(8)
        ]
        trimmed = resizing.trim_vocabulary(preset, texts).tokenizer
        for text in texts:
            assert trimmed.tokenize(text) == tokenizer.tokenize(text)
        changed += trimmed.vocabulary_size < tokenizer.vocabulary_size
    assert changed > 3


def test_no_words_and_long_words():
    with pytest.raises(ValueError, match="`texts` must hold a word"):
        resizing.trim_vocabulary(make(), ["", " \n"])
    new = resizing.trim_vocabulary(make(), [b"good", "a" * 1_000_000])
    assert new.tokenizer.tokenize("a" * 1_000_000) == ["[UNK]"]


@pytest.mark.parametrize("change", [
    lambda preset: resizing.add_tokens(preset, ["playing", "##bs", "q"]),
    lambda preset: resizing.trim_vocabulary(preset, ["hello abc"]),
    lambda preset: resizing.resize_vocabulary(preset, 32),
    lambda preset: resizing.resize_positions(preset, 20),
    lambda preset: resizing.resize_positions(preset, 5),
])  # fmt: skip
@pytest.mark.parametrize("format", ["preset", "huggingface"])
def test_what_is_resized_can_be_saved(tmp_path, change, format):
    new = change(make("text_classifier", max_sequence_length=12))
    keras_bert.save(new, tmp_path / "saved", format=format)
    again = keras_bert.load(tmp_path / "saved")
    assert (again.config, again.labels) == (new.config, new.labels)
    assert again.tokenizer.vocabulary == new.tokenizer.vocabulary
    for path, value in values(new).items():
        np.testing.assert_array_equal(values(again)[path], value)


def test_own_models_are_refused():
    old = make()
    own = keras.Model(old.encoder.input, old.encoder.output, name="own")
    with pytest.raises(ValueError, match="Received: a model named 'own'"):
        resizing.add_tokens(dataclasses.replace(old, model=own), ["playing"])


def test_a_head_keeps_numbers_of_its_own():
    """As KerasHub's masked-LM head, which isn't like its encoder."""
    old = make("masked_lm")
    head = old.model.get_layer("masked_lm_head")
    head.activation, head.norm_epsilon = keras.activations.relu, 1e-3
    head.norm.epsilon = 1e-3
    new = resizing.resize_positions(old, 12)
    assert new.model.get_layer("masked_lm_head").norm_epsilon == 1e-3
    first, again = (outputs(preset, ["hello world"])["masked_lm"] for preset in (old, new))
    np.testing.assert_array_equal(again, first)


# Sizes alone.


def test_rows_without_tokens():
    old = make("masked_lm")
    larger, smaller = resizing.resize_vocabulary(old, 40), resizing.resize_vocabulary(old, 22)
    first = outputs(old, ["hello world"])["masked_lm"]
    more, fewer = (outputs(x, ["hello world"])["masked_lm"] for x in (larger, smaller))
    assert (more.shape[-1], fewer.shape[-1]) == (40, 22)
    np.testing.assert_allclose(more[..., :ROWS], first, rtol=0, atol=1e-6)
    np.testing.assert_allclose(fewer, first[..., :22], rtol=0, atol=1e-6)
    assert np.exp(more[..., ROWS:] - more.max()).sum() == 0
    with pytest.raises(ValueError, match=r"at least 22, the number of tokens.*vocabulary_size=21"):
        resizing.resize_vocabulary(old, 21)


@pytest.mark.parametrize(
    ("settings", "length", "expected"),
    [({}, 30, {}), ({"max_sequence_length": 12}, 30, {"max_sequence_length": 30}),
     ({"max_sequence_length": 10}, 30, {"max_sequence_length": 10}),
     ({"max_sequence_length": 10}, 8, {"max_sequence_length": 8}),
     ({"max_sequence_length": 6}, 8, {"max_sequence_length": 6})],
)  # fmt: skip
def test_positions(settings, length, expected):
    old = make("text_classifier", **settings)
    new = resizing.resize_positions(old, length)
    table = values(old)[resizing.POSITIONS]
    rows = values(new)[resizing.POSITIONS]
    np.testing.assert_array_equal(rows, np.concatenate([table] * 3)[:length])
    assert new.settings == expected
    assert old.settings == settings
    for name, output in outputs(old, ["hello world"]).items():
        np.testing.assert_allclose(outputs(new, ["hello world"])[name], output, rtol=0, atol=1e-6)
    if length > 12:
        outputs(new, ["hello " * (length - 2)])
    with pytest.raises(ValueError, match=r"at least 3\. Received: max_sequence_length=2"):
        resizing.resize_positions(old, 2)


# The cases: 24 rows where 20 are expected, 12 positions where 8 or 16 are.


@pytest.fixture
def formula(tmp_path):
    """The float64 BERT's 20 tokens and 12 positions, as a Hugging Face folder."""
    stored = json.loads((TESTS / "golden" / "formula_bert.json").read_text(encoding="utf-8"))

    def write(rows=20, **described):
        config = keras_bert.BertConfig(
            vocabulary_size=20, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16,
            max_sequence_length=12,
        )  # fmt: skip
        encoder = keras_bert.bert(config)
        model = keras_bert.tasks.pretraining(encoder)
        weights = formula_weights(stored["order"])
        for weight in model.weights:
            weight.assign(weights[formula_name(weight.path)])
        tokenizer = keras_bert.WordPiece(VOCABULARY[:20])
        folder = tmp_path / "source"
        huggingface.write(keras_bert.Preset(config, encoder, tokenizer, model), folder)
        tensors = safetensors_of(folder)
        for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
            more = np.full((rows - 20, *tensors[name].shape[1:]), 0.5, "float32")
            tensors[name] = np.concatenate([tensors[name], more])
        save_file(tensors, folder / "model.safetensors")
        path = folder / "config.json"
        known = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(known | described), encoding="utf-8")
        return folder

    return write, stored


def safetensors_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def check_formula(preset, stored):
    inputs = {name: np.array(rows, "int32") for name, rows in stored["inputs"].items()}
    everywhere = np.tile(np.arange(10, dtype="int32"), (2, 1))
    logits = preset.model(inputs | {"mask_positions": everywhere})["masked_lm"]
    logits = keras.ops.convert_to_numpy(logits)[..., :20]
    real = inputs["padding_mask"] == 1
    expected = np.array(stored["outputs"]["erf"]["mlm_logits"])
    np.testing.assert_allclose(logits[real], expected[real], atol=5e-6, rtol=0)


def test_table_of_24_rows_for_20_tokens(formula):
    """CKP-06."""
    write, stored = formula
    for size in (20, 28):  # the config says other sizes than the tensors have
        with pytest.raises(InputError, match=rf"must be {size}.*vocab_size.*\(24, 8\)"):
            keras_bert.load(write(rows=24, vocab_size=size))
    padded = keras_bert.load(write(rows=24, vocab_size=24))
    check_formula(padded, stored)
    exact = resizing.resize_vocabulary(padded, 20)
    assert values(exact)[BIAS].shape == (20,)
    check_formula(exact, stored)
    extended = resizing.resize_vocabulary(exact, 24)
    assert values(extended)[BIAS].shape == (24,)
    check_formula(extended, stored)
    with pytest.raises(ValueError, match="at least 20"):
        resizing.resize_vocabulary(padded, 19)


@pytest.mark.parametrize("length", [8, 12, 16])
def test_twelve_positions(formula, length):
    """CKP-11."""
    write, stored = formula
    if length != 12:
        with pytest.raises(InputError, match=rf"must be {length}.*max_position_emb.*\(12, 8\)"):
            keras_bert.load(write(max_position_embeddings=length))
    preset = keras_bert.load(write())
    check_formula(preset, stored)
    table = values(preset)[resizing.POSITIONS]
    rows = values(resizing.resize_positions(preset, length))[resizing.POSITIONS]
    assert rows.shape == (length, 8)
    np.testing.assert_array_equal(rows, np.concatenate([table, table])[:length])
