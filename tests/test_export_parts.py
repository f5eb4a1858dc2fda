"""What goes into an export beside its graph: warm-up requests, a page, and a check of it all."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import shlex
import shutil
import sys
import tempfile

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is made on TensorFlow", allow_module_level=True)

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_bert.export import self_check, self_check_process
from keras_bert.export.self_check import ExportError, check
from keras_bert.export.signature_page import signature_page
from keras_bert.export.warm_up import MAX_REQUESTS, write_warm_up

SERVING = "tensorflow-serving-api isn't here: pip install --no-deps tensorflow-serving-api grpcio"
LABELS = ("bad", "不错\0", "fine")
SLOPES = (0.1, -0.2, 0.3)
TEXTS = ["good", "", "好 hello\0", "wörld " * 30]


def export(folder, labels=LABELS, slopes=SLOPES):
    """A model whose logits are slopes times a text's bytes."""
    module = tf.Module()
    module.slopes = tf.Variable(slopes)

    def classify(text):
        tf.debugging.assert_less(tf.strings.length(text), 1000, "a text of 1,000 bytes or more")
        sizes = tf.cast(tf.strings.length(text), tf.float32)
        scores = tf.nn.softmax(sizes[:, tf.newaxis] * module.slopes)
        best = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return {"label": tf.gather(tf.constant(labels), best), "scores": scores, "start": best}

    spec = tf.TensorSpec([None], tf.string, "text")
    signature = tf.function(classify, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={"text": signature})
    return folder


def request(texts):
    """What `export` must answer."""
    logits = np.array([len(text.encode()) for text in texts])[:, np.newaxis] * np.array(SLOPES)
    scores = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    best = scores.argmax(axis=-1)
    outputs = {"label": [LABELS[i] for i in best], "scores": scores, "start": best}
    return "text", {"text": texts}, outputs


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files: none of ours are left there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.glob("keras_bert_*"))


def test_check(tmp_path, monkeypatch):
    good = export(tmp_path / "good")
    no_weights = shutil.copytree(good, tmp_path / "no_weights")
    shutil.rmtree(no_weights / "variables")
    wrong = export(tmp_path / "wrong", labels=(*LABELS[:2], "fin"), slopes=(0.1, -0.2, 0.3001))
    requests = [request(TEXTS[:1]), request(TEXTS)]
    too_long = [*requests, request(["long " * 200])]

    def refused(folder, asked, message):
        with pytest.raises(ExportError, match=message):
            check(folder, asked)

    # Each of the four is a process that spends its time importing TensorFlow.
    failed = "(?s)a text of 1,000 bytes or more.*`text` in request 2"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [
            pool.submit(check, good, requests),
            pool.submit(refused, good, too_long, failed),
            pool.submit(refused, no_weights, requests, "(?s)can't be loaded .*variables"),
            pool.submit(self_check._answers, wrong, [asked[:2] for asked in requests]),
        ]
    *_, answers = [result.result() for result in results]

    monkeypatch.setattr(self_check, "_answers", lambda *_: answers)
    refused(wrong, requests, "`label` .* `text` in request 0, row 0, is 'fin' instead of 'fine'")
    for _, _, outputs in requests:
        outputs["label"] = [label.replace("fine", "fin") for label in outputs["label"]]
    refused(wrong, requests, r"`scores` .*row 0, is 0\.\d+ instead of 0\.\d+ \(element \[0, 0\]")


@pytest.mark.parametrize("name", ["keras", "keras_bert", "keras_hub", "tensorflow_text"])
def test_process_refuses(name, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [self_check_process.Refuse(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.util.find_spec(name)
    with pytest.raises(ImportError, match=f"{name} is refused"):
        importlib.import_module(name)


def test_check_of_outputs(tmp_path, monkeypatch):
    good = export(tmp_path / "good")
    signature, inputs, outputs = request(TEXTS)

    def given(**changes):
        values = {**outputs, **changes}
        encoded = self_check._encoded({key: x for key, x in values.items() if x is not None})
        monkeypatch.setattr(self_check, "_answers", lambda *_: [self_check._decoded(encoded)])
        check(good, [(signature, inputs, outputs)])

    given()
    given(scores=outputs["scores"] + 9e-6)
    with pytest.raises(ExportError, match=r"row 2, is '好' instead of '.*' \(element \[2\]\)"):
        given(label=[*outputs["label"][:2], "好", "好"])
    with pytest.raises(ExportError, match=r"row 1, is 0.333\d+ instead of .*\(element \[1, 0\]\)"):
        given(scores=outputs["scores"] + [[0], [2e-5], [0], [0]])
    with pytest.raises(ExportError, match="row 0, is nan instead of"):
        given(scores=outputs["scores"] * np.nan)
    with pytest.raises(ExportError, match=r"`start` .* is float32 \(4,\) instead of int32 \(4,\)"):
        given(start=outputs["start"].astype(float))
    with pytest.raises(ExportError, match=r"`scores` .* \(4, 2\) instead of float32 \(4, 3\)"):
        given(scores=outputs["scores"][:, :2])
    with pytest.raises(ExportError, match=r"\['label', 'scores'\] instead of \['label', 'scores',"):
        given(start=None)


def test_check_of_graph(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)  # the graph is checked before anything's run
    foreign = export(tmp_path / "foreign")
    content = saved_model_pb2.SavedModel.FromString((foreign / "saved_model.pb").read_bytes())
    nodes = [node for f in content.meta_graphs[0].graph_def.library.function for node in f.node_def]
    next(node for node in nodes if node.op == "StringLength").op = "Foo>Bar"
    (foreign / "saved_model.pb").write_bytes(content.SerializeToString())
    with pytest.raises(ExportError, match="ops that aren't TensorFlow's own: Foo>Bar"):
        check(foreign, [request(TEXTS)])

    told = tmp_path / "told"
    export(told, labels=("bad", f"{told}/labels.txt", "fine"))
    with pytest.raises(ExportError, match=f"holds the path {told}"):
        check(told, [request(TEXTS)])


def test_warm_up(tmp_path):
    tokens = {name: np.arange(6).reshape(2, 3) for name in ("token_ids", "segment_ids")}
    requests = [
        ("text", {"text": ["hello\0", "好" * 100_000]}),
        ("words", {"words": np.array([["a", "b"], ["c", ""]], object)}),
        ("ids", tokens),
        ("text", {"text": np.array([], object)}),
    ]
    path = write_warm_up(tmp_path, "名", requests)
    assert path == tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    assert len(records) == len(requests)
    with pytest.raises(ValueError, match=r"at most 1,000 requests.*Received: 1,001 requests"):
        write_warm_up(tmp_path, "a", requests[:1] * (MAX_REQUESTS + 1))

    prediction_log_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2", reason=SERVING
    )
    for record, (signature, inputs) in zip(records, requests, strict=True):
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        asked = log.predict_log.request
        assert (asked.model_spec.name, asked.model_spec.signature_name) == ("名", signature)
        read = {name: tf.make_ndarray(tensor) for name, tensor in asked.inputs.items()}
        assert set(read) == set(inputs)
        for name, value in inputs.items():
            texts = signature in ("text", "words")
            assert read[name].dtype == (object if texts else np.int32)
            assert read[name].shape == np.shape(value)
            flat = np.ravel(np.array(value, object))
            expected = [text.encode() for text in flat] if texts else flat.tolist()
            assert read[name].ravel().tolist() == expected


def specs(**shapes):
    """Specs by name; the first letter of a shape is the dtype, the rest are its dimensions."""
    dtypes = {"i": tf.int32, "f": tf.float32, "s": tf.string}
    return {
        name: tf.TensorSpec([int(n) if n.isdigit() else None for n in shape[1:]], dtypes[shape[0]])
        for name, shape in shapes.items()
    }


NAME = "it's $HOME"
IDS = specs(token_ids="iBT", segment_ids="iBT", padding_mask="iBT")
BY_LENGTH = specs(token_ids="iBT", segment_ids="iBT", length="iB")
WORDS = specs(words="sBW", tags="sBW", starts="iBW", ends="iBW", count="iB")
SIGNATURES = {
    "text": (specs(text="sB"), specs(label="sB", score="fB", scores="fB3")),
    "pair": (specs(text="sB", pair="sB"), specs(label="sB", labels="sBK", count="iB")),
    "ids": (IDS, specs(score="fB")),
    "ids_by_length": (BY_LENGTH, specs(tags="sBT")),
    "words": (specs(words="sBW"), WORDS),
    "question_context": (
        specs(question="sB", context="sB"),
        specs(answer="sB", start="iB", end="iB", score="fB"),
    ),
    "masks": (specs(text="sB"), specs(tokens="sBM5", scores="fBM5", count="iB")),
    "embedding": (IDS, specs(embedding="fB8")),
    "spans": (IDS, specs(start="iB", end="iB", score="fB")),
}
EXAMPLES = {
    signature: {
        name: (["It's \"\\ `好`\u2028\n", "$HOME"] if spec.dtype == tf.string else [2, 3])
        if spec.shape.rank == 1
        else ([["a", "b"]] if spec.dtype == tf.string else np.array([[2, 3], [4, 0]]))
        for name, spec in inputs.items()
    }
    for signature, (inputs, _) in SIGNATURES.items()
}


def page():
    return signature_page(NAME, SIGNATURES, EXAMPLES, {"bytes": 1_000_000, "tokens": 512})


def blocks(language):
    """The code blocks of the page."""
    return [part.split("\n```\n")[0] for part in page().split(f"```{language}\n")[1:]]


def test_signature_page():
    text = page()
    assert text.startswith(f"# {NAME}\n")
    for row in (
        "| input | `token_ids` | int32 | B x T | ids of the tokens, that of [CLS] first |",
        "| input | `length` | int32 | B | how many tokens the row has; the rest is padding |",
        "| output | `score` | float32 | B | probability of `label` |",
        "| output | `score` | float32 | B | the predicted value |",
        "| output | `scores` | float32 | B x 3 | probabilities of all classes, in the order of "
        "their training |",
        "| output | `scores` | float32 | B x M x 5 | probabilities of `tokens`, padded with 0 |",
        '| output | `tags` | string | B x T | the tag of each token, "" at padding, [CLS] and '
        "[SEP] |",
        "| output | `start` | int32 | B | position of the answer's first token |",
        "| output | `embedding` | float32 | B x 8 | vector of the text |",
    ):
        assert row in text.split("\n"), row
    assert "at most 1,000,000 bytes" in text
    assert "at most 512 tokens" in text

    start, *calls = blocks("bash")
    assert f"--model_name={NAME}" in shlex.split(start)
    for call, (signature, example) in zip(calls, EXAMPLES.items(), strict=True):
        curl, option, body, address = shlex.split(call)
        assert (curl, option) == ("curl", "--data")
        assert address == "http://localhost:8501/v1/models/it%27s%20%24HOME:predict"
        inputs = {name: np.asarray(value).tolist() for name, value in example.items()}
        assert json.loads(body) == {"signature_name": signature, "inputs": inputs}


def test_python_calls_of_the_page(capsys):
    pytest.importorskip("tensorflow_serving", reason=SERVING)
    grpc = pytest.importorskip("grpc", reason=SERVING)
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Echo(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            assert request.model_spec.name == NAME
            spec = predict_pb2.PredictResponse(model_spec=request.model_spec)
            for name, value in request.inputs.items():
                spec.outputs[name].CopyFrom(value)
            asked.append(spec)
            return spec

    asked = []
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        for call in blocks("python"):
            assert len(call.split("\n")) <= 13
            exec(call.replace("localhost:8500", f"localhost:{port}"), {})
    finally:
        server.stop(None)

    for echo, (signature, example) in zip(asked, EXAMPLES.items(), strict=True):
        assert echo.model_spec.signature_name == signature
        assert set(echo.outputs) == set(example)
        for name, tensor in echo.outputs.items():
            spec = SIGNATURES[signature][0][name]
            assert (tensor.dtype, len(tensor.tensor_shape.dim)) == (
                spec.dtype.as_datatype_enum, spec.shape.rank
            )  # fmt: skip
            read = [x.decode() if isinstance(x, bytes) else x
                    for x in tf.make_ndarray(tensor).ravel().tolist()]  # fmt: skip
            assert read == np.ravel(example[name]).tolist()
    assert capsys.readouterr().out.count("{") == len(EXAMPLES)
