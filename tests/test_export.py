"""A SavedModel that a process with TensorFlow alone can load, move and ask."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel is made on TensorFlow"
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good", "好"]
LABELS = ("bad", "不错", "fine")
TEXTS = ["Hello good worlds", "", "好 hello, 好!", "good " * 40, "ÉÉ [MASK] hello"]

REFUSING = """
import importlib.abc, importlib.machinery, json, sys

class Refuse(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    # TensorFlow asks where keras is before it tries to import it: only the import fails.
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras_bert", "keras", "keras_hub", "tensorflow_text"):
            return importlib.machinery.ModuleSpec(name, self, origin="refused")

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is refused")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refuse())
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
texts = json.loads(sys.argv[2])
text = model.signatures["text"](text=tf.constant(texts))
default = model.signatures["serving_default"](text=tf.constant(texts))
ids = {name: tf.constant(rows) for name, rows in json.loads(sys.argv[3]).items()}
by_ids = model.signatures["ids"](**ids)
print(json.dumps({
    "labels": [label.decode() for label in text["label"].numpy()],
    "score": text["score"].numpy().tolist(),
    "scores": text["scores"].numpy().tolist(),
    "default": default["scores"].numpy().tolist(),
    "ids": by_ids["scores"].numpy().tolist(),
}))
"""


@pytest.fixture(scope="module")
def preset():
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=64,
        initializer_range=0.3,
    )
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.text_classifier(encoder, len(LABELS))
    tokenizer = keras_bert.WordPiece(VOCABULARY)
    return keras_bert.Preset(config, encoder, tokenizer, model, LABELS, {"max_sequence_length": 16})


def inputs_of(preset, texts):
    """The texts as `classification` would batch them, by the Python tokenizer."""
    length = preset.settings["max_sequence_length"]
    rows = [preset.tokenizer.encode(text, max_length=length).token_ids for text in texts]
    token_ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    mask = np.zeros_like(token_ids)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": mask}


def test_moved_export_answers_like_the_model(preset, tmp_path):
    exported = keras_bert.export_saved_model(preset, tmp_path / "export")
    assert exported == tmp_path / "export" / "1"
    moved = tmp_path / "elsewhere" / "7"
    moved.parent.mkdir()
    shutil.move(exported, moved)
    shutil.rmtree(tmp_path / "export")

    inputs = inputs_of(preset, TEXTS)
    ids = json.dumps({name: rows.tolist() for name, rows in inputs.items()})
    command = [sys.executable, "-c", REFUSING, str(moved), json.dumps(TEXTS), ids]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answers = json.loads(output.stdout.splitlines()[-1])

    logits = preset.model.predict(inputs, verbose=0)["label"]
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    for name in ("scores", "default", "ids"):
        np.testing.assert_allclose(answers[name], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(answers["score"], expected.max(axis=-1), rtol=0, atol=1e-5)
    assert answers["labels"] == [LABELS[i] for i in expected.argmax(axis=-1)]


def test_signatures_and_ops(preset, tmp_path):
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    folder = keras_bert.export_saved_model(preset, tmp_path)
    model = tf.saved_model.load(folder)
    shapes = {
        name: {key: (spec.dtype, spec.shape.as_list()) for key, spec in
               signature.structured_input_signature[1].items()}
        for name, signature in model.signatures.items()
    }  # fmt: skip
    int32, text = tf.int32, {"text": (tf.string, [None])}
    names = ("token_ids", "segment_ids", "padding_mask")
    assert shapes == {
        "ids": dict.fromkeys(names, (int32, [None, None])),
        "text": text,
        "serving_default": text,
    }
    assert model.signatures["text"](text=tf.constant([], tf.string))["scores"].shape == (0, 3)
    for batch, length in ((1, 1), (3, 8), (2, 64), (0, 4)):
        ones = {name: tf.ones((batch, length), int32) for name in names}
        outputs = model.signatures["ids"](**ones)
        assert {key: value.shape[0] for key, value in outputs.items()} == dict.fromkeys(
            ("label", "score", "scores"), batch
        )

    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    [graph] = content.meta_graphs
    ops = {node.op for node in graph.graph_def.node}
    ops |= {node.op for f in graph.graph_def.library.function for node in f.node_def}
    assert not [op for op in ops if ">" in op or "Text" in op or "Wordpiece" in op]
    assert str(tmp_path).encode() not in (folder / "saved_model.pb").read_bytes()


def test_what_can_not_be_exported(preset, tmp_path):
    encoder = dataclasses.replace(preset, model=preset.encoder)
    with pytest.raises(InputError, match="Only text classifiers"):
        keras_bert.export_saved_model(encoder, tmp_path / "a")
    several = dataclasses.replace(preset, settings=preset.settings | {"multi_label": True})
    with pytest.raises(InputError, match="several labels at once"):
        keras_bert.export_saved_model(several, tmp_path / "a")
    for name, value in (("pair", True), ("symmetric", True), ("truncate", "tail"),
                        ("window_stride", 8)):  # fmt: skip
        other = dataclasses.replace(preset, settings=preset.settings | {name: value})
        with pytest.raises(InputError, match=f"can't be exported so far.*'{name}'"):
            keras_bert.export_saved_model(other, tmp_path / "a")
    keras_bert.export_saved_model(preset, tmp_path / "b")
    with pytest.raises(InputError, match="exists"):
        keras_bert.export_saved_model(preset, tmp_path / "b")
    assert not (tmp_path / "a").exists()
