"""A packed task gives the numbers of the same sequences one a row: outputs, losses, gradients."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_bert
from keras_bert import tasks
from keras_bert.data.packing import best_fit, joined, pack, per_slot, starts_in_rows

NUMBERS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
CONFIG = keras_bert.BertConfig(
    vocabulary_size=30, max_sequence_length=16, initializer_range=0.2, dropout=0.0,
    attention_dropout=0.0, **NUMBERS,
)  # fmt: skip
LENGTHS = (5, 12, 3, 7, 16, 4, 9, 6)
NUM_MASKED = np.array([1, 3, 1, 2, 4, 1, 2, 1])


@pytest.fixture(scope="module")
def sequences():
    """The same eight sequences one a row, and packed into rows of 16 and 3 slots."""
    rng = np.random.default_rng(0)
    token_ids = [rng.integers(1, 30, n).astype("int32") for n in LENGTHS]
    segment_ids = [(np.arange(n) >= n // 2).astype("int32") for n in LENGTHS]
    masked = [np.sort(rng.choice(n, m, False)) for n, m in zip(LENGTHS, NUM_MASKED, strict=True)]
    words, labels = rng.integers(1, 30, NUM_MASKED.sum()), rng.integers(0, 2, len(LENGTHS))
    sizes = {"row_length": 16, "num_slots": 3}

    def batch(rows):
        inputs = pack(token_ids, segment_ids, rows, **sizes)
        starts = starts_in_rows(np.array(LENGTHS), rows)
        positions = np.concatenate(masked) + np.repeat(starts, NUM_MASKED)
        in_rows = (NUM_MASKED, rows, 6)
        ones = np.ones(len(words), "float32")
        return {
            "inputs": inputs | {"mask_positions": joined(positions.astype("int32"), *in_rows)},
            "words": (joined(words, *in_rows), joined(ones, *in_rows)),
            "labels": (per_slot(labels, rows, 3), per_slot(np.ones(8, "float32"), rows, 3)),
        }

    rows = best_fit(LENGTHS, 16)
    assert max(map(len, rows)) == 3 and len(rows) == 4
    return rows, batch([[i] for i in range(8)]), batch(rows)


def of(model, batch):
    """What of a batch the model takes: (inputs, labels, weights), one sequence a row or packed."""
    inputs = {name: batch["inputs"][name] for name in model.input}
    labels, weights = {}, {}
    for name in model.output:
        labels[name], weights[name] = batch["words" if name == "masked_lm" else "labels"]
        if "sequence_starts" not in model.input and name != "masked_lm":
            labels[name], weights[name] = labels[name][:, 0], weights[name][:, 0]
    return inputs, labels, weights


def loss_and_gradients(model, data):
    """The loss of a batch, and by path what an update of plain descent at rate 1 takes off."""
    before = {weight.path: ops.convert_to_numpy(weight) for weight in model.trainable_weights}
    model.compile(
        keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    loss = model.train_on_batch(*data, return_dict=True)["loss"]
    after = {weight.path: ops.convert_to_numpy(weight) for weight in model.trainable_weights}
    for weight in model.trainable_weights:
        weight.assign(before[weight.path])
    return float(loss), {path: before[path] - after[path] for path in before}


TASKS = {
    "pretraining": tasks.pretraining,
    "next_sentence": tasks.next_sentence,
    "text_classifier": lambda encoder, packed: tasks.text_classifier(encoder, 2, 0.0, packed),
}


@pytest.mark.parametrize("task", TASKS)
def test_packed_equals_unpacked(sequences, task):
    rows, alone, together = sequences
    encoder = keras_bert.bert(CONFIG)
    packed = TASKS[task](encoder, packed=True)
    plain = tasks.unpacked(packed, encoder)
    assert [w.path for w in plain.weights] == [w.path for w in packed.weights]

    ours, theirs = (
        packed.predict_on_batch(of(packed, together)[0]),
        plain.predict_on_batch(of(plain, alone)[0]),
    )
    for name, output in ours.items():
        if name == "masked_lm":
            used = together["words"][1] > 0
            order = np.concatenate([np.arange(6)[:m] + 6 * i for row in rows for i, m in
                                    zip(row, NUM_MASKED[row], strict=True)])  # fmt: skip
            expected = theirs[name].reshape(-1, 30)[order]
        else:
            used = together["inputs"]["sequence_starts"] >= 0
            expected = theirs[name][np.concatenate(rows)]
        assert np.isfinite(output).all()
        np.testing.assert_allclose(output[used], expected, rtol=0, atol=1e-5)

    loss, gradients = loss_and_gradients(plain, of(plain, alone))
    packed_loss, packed_gradients = loss_and_gradients(packed, of(packed, together))
    assert abs(loss - packed_loss) < 1e-5
    assert gradients.keys() == packed_gradients.keys()
    for path, gradient in gradients.items():
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(packed_gradients[path], gradient, rtol=0, atol=1e-4)
    assert max(np.abs(g).max() for g in gradients.values()) > 0.01


def test_regression(sequences):
    _, alone, together = sequences
    encoder = keras_bert.bert(CONFIG)
    packed = tasks.text_classifier(encoder, 1, 0.0, packed=True)
    plain = tasks.unpacked(packed, encoder)
    losses = []
    for model, batch in ((plain, alone), (packed, together)):
        inputs, labels, weights = of(model, batch)
        model.compile("sgd", "mse")
        # An element of its own for each label, or Keras's mean would go over the slots.
        labels = {"label": labels["label"][..., None].astype("float32")}
        losses.append(float(model.test_on_batch(inputs, labels, weights)))
    assert abs(losses[0] - losses[1]) < 1e-5


def test_weights_have_the_paths_of_the_plain_task():
    encoder = keras_bert.bert(CONFIG)
    packed = TASKS["pretraining"](encoder, packed=True)
    plain = tasks.pretraining(keras_bert.bert(CONFIG))
    assert [(w.path, w.shape) for w in packed.weights] == [(w.path, w.shape) for w in plain.weights]


def test_packed_preset_is_saved_as_the_plain_task(sequences, tmp_path):
    _, alone, together = sequences
    (tmp_path / "vocab.txt").write_text("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 122))]
    ), encoding="utf-8")  # fmt: skip
    encoder = keras_bert.bert(CONFIG)
    packed = tasks.text_classifier(encoder, 2, packed=True)
    packed.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    packed.train_on_batch(*of(packed, together))

    plain = tasks.unpacked(packed, encoder)
    tokenizer = keras_bert.WordPiece(tmp_path / "vocab.txt")
    preset = keras_bert.Preset(CONFIG, encoder, tokenizer, plain, labels=("no", "yes"))
    inputs = of(plain, alone)[0]
    expected = plain.predict_on_batch(inputs)["label"]
    for format in ("preset", "huggingface"):
        keras_bert.save(preset, tmp_path / format, format)
        loaded = keras_bert.load(tmp_path / format)
        np.testing.assert_allclose(
            loaded.model.predict_on_batch(inputs)["label"], expected, rtol=0, atol=1e-6
        )
    assert dataclasses.asdict(loaded.config) == dataclasses.asdict(CONFIG)


def test_starts_beyond_the_row(sequences):
    _, _, together = sequences
    packed = tasks.next_sentence(keras_bert.bert(CONFIG), packed=True)
    inputs = {name: ops.convert_to_tensor(together["inputs"][name]) for name in packed.input}
    for wrong in (16, -2):
        inputs["sequence_starts"] = ops.full((4, 3), wrong, "int32")
        with pytest.raises(ValueError, match=f"Received: {wrong}"):
            packed(inputs)


def test_packed_model_round_trips(sequences, tmp_path):
    _, _, together = sequences
    packed = tasks.next_sentence(keras_bert.bert(CONFIG), packed=True)
    packed.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    inputs = of(packed, together)[0]
    expected = packed.predict_on_batch(inputs)["next_sentence"]
    np.testing.assert_array_equal(again.predict_on_batch(inputs)["next_sentence"], expected)
