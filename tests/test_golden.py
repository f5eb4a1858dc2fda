"""Numbers against outside implementations: Hugging Face's (torch) and a float64 one in numpy.

The arrays in `golden/` were made by Hugging Face transformers 5.24.0 in float32 from small
models whose every weight is random, so that a swapped, transposed or forgotten one shows.
"""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.checkpoints.huggingface import hugging_face_name
from keras_bert.models import attention_maps

TOLERANCE = 1e-5
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TINY = {
    "vocabulary_size": 100,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "max_sequence_length": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def tiny_encoder(**numbers):
    return keras_bert.bert(keras_bert.BertConfig(**TINY | numbers))


def assign(model, tensors):
    """Sets every weight; torch's kernels are (out, in), ours (in, out)."""
    for weight in model.weights:
        name = hugging_face_name(weight.path)
        tensor = tensors.get(name, tensors.get(name.removeprefix("bert.")))
        weight.assign(tensor.T if weight.path.endswith("kernel") else tensor)


def encoder_inputs(arrays):
    names = {
        "token_ids": "input_ids",
        "segment_ids": "token_type_ids",
        "padding_mask": "attention_mask",
    }
    return {ours: arrays[theirs].astype("int32") for ours, theirs in names.items()}


def masked_lm_batch(arrays):
    """Their labels, -100 where nothing is predicted, as our positions, labels and weights."""
    labels = arrays["labels"]
    positions = np.zeros((4, 3), "int32")
    weights = np.zeros((4, 3), "float32")
    for row in range(4):
        where = np.flatnonzero(labels[row] >= 0)
        positions[row, : len(where)] = where
        weights[row, : len(where)] = 1
    targets = np.maximum(np.take_along_axis(labels, positions, axis=1), 0).astype("int32")
    return positions, targets, weights


@keras.saving.register_keras_serializable("tests")
class GradientRecorder(keras.optimizers.Optimizer):
    """Keeps the gradient that reaches the optimizer and changes no weight."""

    def build(self, variables):
        super().build(variables)
        self.recorded = self.add_optimizer_variables(variables, "gradient")

    def update_step(self, gradient, variable, learning_rate):
        # TensorFlow's gradient of a table is a row for each look-up: this sums them.
        gradient = keras.ops.reshape(gradient, variable.shape)
        self.assign(self.recorded[self._get_variable_index(variable)], gradient)


def check_gradients(model, arrays, inputs, labels, weights=None, loss=CROSS_ENTROPY):
    recorder = GradientRecorder(learning_rate=0.0)
    model.compile(recorder, dict.fromkeys(labels, loss))
    value = model.train_on_batch(inputs, labels, sample_weight=weights)
    np.testing.assert_allclose(np.ravel(value)[0], arrays["loss"], rtol=TOLERANCE)
    norms = dict(zip(arrays["grad_names"], arrays["grad_norms"], strict=True))
    seen = set()
    for variable, gradient in zip(model.trainable_variables, recorder.recorded, strict=True):
        name = hugging_face_name(variable.path)
        gradient = keras.ops.convert_to_numpy(gradient.value)
        norm = np.sqrt(np.sum(np.square(gradient, dtype="float64")))
        floor = 1e-7
        if name.endswith("key.bias"):
            # It shifts a query's scores alike and has no true gradient: what's there is rounding,
            # which grows with the other gradients.
            floor = max(floor, 1e-8 * arrays["grad_global_norm"])
        np.testing.assert_allclose(norm, norms[name], rtol=1e-4, atol=floor, err_msg=name)
        first = (gradient.T if variable.path.endswith("kernel") else gradient).ravel()[:4]
        stored = arrays["grad_first4"][list(arrays["grad_names"]).index(name)][: len(first)]
        np.testing.assert_allclose(first, stored, rtol=1e-3, atol=1e-5, err_msg=name)
        seen.add(name)
    assert seen == set(norms)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_encoder(golden, activation):
    arrays = golden(f"outputs_tiny_model_{activation}")
    encoder = tiny_encoder(activation=activation)
    assign(encoder, golden("weights_tiny_model"))
    outputs = encoder.predict(encoder_inputs(arrays), verbose=0)
    for ours, theirs in (
        ("sequence_output", "out_last_hidden_state"),
        ("pooled_output", "out_pooler_output"),
    ):
        np.testing.assert_allclose(outputs[ours], arrays[theirs], rtol=0, atol=TOLERANCE)


def test_hidden_states_and_attention_maps(golden):
    arrays = golden("outputs_tiny_model_gelu")
    encoder = tiny_encoder()
    assign(encoder, golden("weights_tiny_model"))
    inputs = encoder_inputs(arrays)
    layers = ["embedding_norm", "block_0", "block_1"]
    states = keras.Model(encoder.input, [encoder.get_layer(name).output for name in layers])
    for ours, theirs in zip(states.predict(inputs, verbose=0), arrays["out_hidden_states"]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    for ours, theirs in zip(attention_maps(encoder, inputs), arrays["out_attentions"]):
        ours = keras.ops.convert_to_numpy(ours)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def test_pretraining(golden):
    arrays = golden("outputs_tiny_pretraining")
    model = keras_bert.tasks.pretraining(tiny_encoder())
    assign(model, golden("weights_tiny_pretraining"))
    positions, targets, weights = masked_lm_batch(arrays)
    inputs = encoder_inputs(arrays)

    everywhere = np.tile(np.arange(24, dtype="int32"), (4, 1))
    outputs = model.predict(inputs | {"mask_positions": everywhere}, verbose=0)
    for ours, theirs in (
        ("masked_lm", "out_prediction_logits"),
        ("next_sentence", "out_seq_relationship_logits"),
    ):
        np.testing.assert_allclose(outputs[ours], arrays[theirs], rtol=0, atol=TOLERANCE)

    check_gradients(
        model,
        arrays,
        inputs | {"mask_positions": positions},
        {"masked_lm": targets, "next_sentence": arrays["next_sentence_label"].astype("int32")},
        {"masked_lm": weights, "next_sentence": np.ones(4, "float32")},
    )


def test_masked_lm(golden):
    arrays = golden("outputs_tiny_masked_lm")
    model = keras_bert.tasks.masked_lm(tiny_encoder())
    assign(model, golden("weights_tiny_masked_lm"))
    positions, targets, weights = masked_lm_batch(arrays)
    inputs = encoder_inputs(arrays) | {"mask_positions": positions}
    logits = model.predict(inputs, verbose=0)["masked_lm"]
    expected = np.take_along_axis(arrays["out_logits"], positions[:, :, None], axis=1)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    check_gradients(model, arrays, inputs, {"masked_lm": targets}, {"masked_lm": weights})


def test_next_sentence(golden):
    arrays = golden("outputs_tiny_next_sentence")
    encoder = tiny_encoder()
    logits = keras.layers.Dense(2, name="next_sentence")(encoder.output["pooled_output"])
    model = keras_bert.training.Model(encoder.input, {"next_sentence": logits})
    assign(model, golden("weights_tiny_next_sentence"))
    inputs = encoder_inputs(arrays)
    logits = model.predict(inputs, verbose=0)["next_sentence"]
    np.testing.assert_allclose(logits, arrays["out_logits"], rtol=0, atol=TOLERANCE)
    check_gradients(model, arrays, inputs, {"next_sentence": arrays["labels"].astype("int32")})


@pytest.mark.parametrize(
    ("name", "num_classes", "dtype", "loss"),
    [
        ("3", 3, "int32", CROSS_ENTROPY),
        ("regression", 1, "float32", keras.losses.MeanSquaredError()),
        ("multilabel", 5, "float32", keras.losses.BinaryCrossentropy(from_logits=True)),
    ],
)
def test_text_classifier(golden, name, num_classes, dtype, loss):
    arrays = golden(f"outputs_tiny_seqcls_{name}")
    model = keras_bert.tasks.text_classifier(tiny_encoder(), num_classes, dropout=0.0)
    assign(model, golden(f"weights_tiny_seqcls_{name}"))
    inputs = encoder_inputs(arrays)
    logits = model.predict(inputs, verbose=0)["label"]
    np.testing.assert_allclose(logits, arrays["out_logits"], rtol=0, atol=TOLERANCE)
    labels = arrays["labels"].astype(dtype).reshape(4, -1)
    check_gradients(model, arrays, inputs, {"label": labels}, loss=loss)


def test_training_trajectory(golden):
    """Twelve updates of AdamW with warm-up, decay and clipping, beside torch's."""
    arrays = golden("training_tiny")
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3, dropout=0.0)
    assign(model, golden("weights_tiny_seqcls_3"))
    model.compile(
        keras_bert.training.AdamW(keras_bert.training.WarmupLinear(1e-3, 3, 12)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    labels = arrays["labels"].astype("int32")
    inputs = encoder_inputs(arrays)
    losses = [np.ravel(model.train_on_batch(inputs, labels))[0]]
    for _ in range(11):
        model.reset_metrics()
        losses.append(np.ravel(model.train_on_batch(inputs, labels))[0])
    np.testing.assert_allclose(losses, arrays["adamw_losses"], rtol=0, atol=TOLERANCE)


def formula_weights(order):
    """The weights of `formula_bert.json`, made again from its closed formula."""
    scales = {"ffn_in.w": 0.9, "mlm.dense.w": 0.9, "ffn_out.w": 0.6}
    weights = {}
    for rank, (name, shape) in enumerate(order, 1):
        wave = np.sin(0.7 * np.arange(1, np.prod(shape) + 1) + 1.3 * rank).reshape(shape)
        if name.endswith("gamma"):
            weights[name] = 1 + 0.1 * wave
        elif name.endswith(("beta", ".b", "mlm.bias")):
            weights[name] = 0.1 * wave
        else:
            scale = next((s for end, s in scales.items() if name.endswith(end)), 0.2)
            weights[name] = scale * wave
    return weights


def formula_name(path):
    """Our weight path -> the name in `formula_bert.json`."""
    path = path.replace("block_", "layer").replace("/", ".")
    for ours, theirs in (
        ("token_embedding.embeddings", "embeddings.word"),
        ("position_embedding.embeddings", "embeddings.position"),
        ("segment_embedding.embeddings", "embeddings.token_type"),
        ("embedding_norm", "embeddings.ln"),
        (".attention.projection", ".attn_out"),
        (".attention.", "."),
        ("attention_norm", "attn_ln"),
        ("intermediate", "ffn_in"),
        ("projection", "ffn_out"),
        ("output_norm", "ffn_ln"),
        ("masked_lm_head.dense", "mlm.dense"),
        ("masked_lm_head.norm", "mlm.ln"),
        ("masked_lm.bias", "mlm.bias"),
        ("next_sentence", "nsp"),
    ):
        path = path.replace(ours, theirs)
    path = path.replace(".kernel", ".w")
    return path if path == "mlm.bias" else path.replace(".bias", ".b")


@pytest.mark.parametrize(("activation", "key"), [("gelu", "erf"), ("gelu_tanh", "tanh")])
def test_formula_bert(activation, key):
    """A float64 BERT written from the paper, with weights from a closed formula."""
    stored = json.loads((TESTS / "golden" / "formula_bert.json").read_text(encoding="utf-8"))
    config = keras_bert.BertConfig(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
        activation=activation,
    )
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.pretraining(encoder)
    weights = formula_weights(stored["order"])
    for weight in model.weights:
        weight.assign(weights[formula_name(weight.path)])
    inputs = check_formula_outputs(model, encoder, stored, key)
    if key == "erf":
        check_formula_losses(model, inputs, stored["losses"])


def check_formula_outputs(model, encoder, stored, key):
    """All outputs to 5e-6 where tokens are real; gives the inputs back."""
    inputs = {name: np.array(rows, "int32") for name, rows in stored["inputs"].items()}
    everywhere = np.tile(np.arange(10, dtype="int32"), (2, 1))
    outputs = model.predict(inputs | {"mask_positions": everywhere}, verbose=0)
    outputs |= encoder.predict(inputs, verbose=0)

    real = inputs["padding_mask"] == 1
    for ours, theirs, where in (
        ("sequence_output", "sequence", real),
        ("pooled_output", "pooled", slice(None)),
        ("masked_lm", "mlm_logits", real),
        ("next_sentence", "nsp_logits", slice(None)),
    ):
        expected = np.array(stored["outputs"][key][theirs])
        np.testing.assert_allclose(outputs[ours][where], expected[where], rtol=0, atol=5e-6)
    return inputs


def check_formula_losses(model, inputs, stored):
    """Three masked positions in two rows, one slot empty: the mean is over three."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"masked_lm": loss, "next_sentence": loss})
    logs = model.test_on_batch(
        inputs | {"mask_positions": np.array([[2, 0], [4, 7]], "int32")},
        {"masked_lm": np.array([[7, 0], [10, 16]]), "next_sentence": np.array([0, 1])},
        {"masked_lm": np.array([[1.0, 0], [1, 1]]), "next_sentence": np.ones(2)},
        return_dict=True,
    )
    np.testing.assert_allclose(logs["loss"], stored["total"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(logs["masked_lm_loss"], stored["mlm"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(logs["next_sentence_loss"], stored["nsp"], rtol=0, atol=1e-5)
