"""An export loaded by TensorFlow's C API alone, and asked over TensorFlow Serving's wire."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest
from serving.runner import Code, Runner, RunnerError, build, check_against, missing_tool

import keras_bert

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel is made on TensorFlow"
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good", "好"]
LABELS = ("bad", "不错", "fine")
TEXTS = ["Hello good worlds", "", "好 hello, 好!", "good " * 40, "ÉÉ [MASK] hello"]
IDS = np.array([[2, 5, 8, 6, 7, 3], [2, 3, 0, 0, 0, 0], [2, 9, 5, 1, 3, 0], [2, 8, 8, 8, 8, 3],
                [2, 1, 4, 5, 3, 0]], "int32")  # fmt: skip
# An input of each name that an export's signatures may have, five rows each.
SAMPLES = {
    "text": TEXTS,
    "pair": TEXTS[::-1],
    "question": ["good?", "hello world", "好", "worlds", "[SEP]"],
    "context": ["good world", "hello", "好 hello", "good worlds " * 9, "ÉÉ hello"],
    "words": [["Hello", "worlds"], ["good", ""], ["", ""], ["好", "É"], ["good,", "good"]],
    "token_ids": IDS,
    "segment_ids": np.zeros_like(IDS),
    "padding_mask": (IDS != 0).astype("int32"),
    "length": (IDS != 0).sum(axis=1, dtype="int32"),
}


def samples(runner: Runner, signature: str) -> dict[str, object]:
    """Inputs for any signature."""
    return {name: SAMPLES[name] for name in runner.signatures[signature].inputs}


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if reason := missing_tool():
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("program"))


def tiny_preset(task, labels=(), arguments=(), **settings):
    """A preset on a tiny encoder; `task` is None for the encoder alone."""
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
    model = getattr(keras_bert.tasks, task)(encoder, **dict(arguments)) if task else encoder
    settings = {"max_sequence_length": 16} | settings
    return keras_bert.Preset(
        config, encoder, keras_bert.WordPiece(VOCABULARY), model, labels, settings
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A tiny classifier's folder, with version 1."""
    preset = tiny_preset("text_classifier", LABELS, {"num_classes": 3})
    folder = tmp_path_factory.mktemp("models") / "tone"
    keras_bert.export_saved_model(preset, folder)
    return folder


@pytest.fixture(scope="module")
def cold(exported, tmp_path_factory):
    """The same without warm-up requests, which take seconds."""
    folder = shutil.copytree(exported, tmp_path_factory.mktemp("models") / "cold")
    shutil.rmtree(folder / "1" / "assets.extra", ignore_errors=True)
    return folder


@pytest.fixture(scope="module")
def runner(program, exported):
    with Runner(program, exported / "1", threads=1) as runner:
        yield runner


@pytest.fixture(scope="module")
def wire():
    """What the wire takes, or a reason to skip."""
    reason = "TensorFlow Serving's wire isn't tested: install tensorflow-serving-api"
    pytest.importorskip("grpc", reason=reason)
    pytest.importorskip("tensorflow_serving.apis", reason=reason)


@pytest.fixture(scope="module")
def server(wire, program, exported):
    """The ports of a server started from the command line; it ends well when told to."""
    command = [
        *(sys.executable, "-m", "tests.serving.server", "--model_name", "tone"),
        *("--model_base_path", exported, "--port", "0", "--rest_api_port", "0"),
    ]
    root = pathlib.Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        ports = re.findall(r":(\d+)", process.stdout.readline())
        try:
            yield types.SimpleNamespace(port=ports[0], rest_port=ports[1])
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.fixture(scope="module")
def serve(wire, program):
    """Starts a server in this process, over a folder of versions."""
    from serving.server import Model, Server

    @contextlib.contextmanager
    def start(folder, *arguments):
        server = Server(Model("tone", folder, program, *arguments))
        try:
            yield server
        finally:
            server.close()

    return start


@pytest.fixture(scope="module")
def stub(server):
    with stub_at(server.port) as stub:
        yield stub


@contextlib.contextmanager
def stub_at(port):
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    with grpc.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def request_of(signature, inputs, name="tone"):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, signature
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def arrays_of(response):
    import tensorflow as tf

    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def rest(server, path, request=None, model="tone"):
    """Status and JSON of a REST call: GET, or POST of `request`."""
    data = request if isinstance(request, bytes | None) else json.dumps(request).encode()
    url = f"http://127.0.0.1:{server.rest_port}/v1/models/{model}{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data, 20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def assert_same(outputs, expected):
    """Equal strings and types, numbers within 1e-5."""
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert outputs[name].dtype == array.dtype, name
        if array.dtype == object:
            assert outputs[name].tolist() == array.tolist(), name
        else:
            np.testing.assert_allclose(outputs[name], array, rtol=0, atol=1e-5, err_msg=name)


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing came of it in 20 s"
        time.sleep(0.02)


def test_the_c_loader_answers_as_python_does(runner, exported):
    import tensorflow as tf

    module = tf.saved_model.load(exported / "1")
    assert module.signatures.keys() == runner.signatures.keys() - {"__saved_model_init_op"}
    for signature in module.signatures:
        inputs = samples(runner, signature)
        outputs = check_against(module, runner, signature, inputs)
        for name, array in outputs.items():
            assert len(array) == len(TEXTS), (signature, name)
        none = {name: np.asarray(value)[:0] for name, value in inputs.items()}
        check_against(module, runner, signature, none)


THREE = {"num_classes": 3}
# Of each kind of export that isn't `exported` one: its task, labels, head and settings.
KINDS = {
    "pair": ("text_classifier", (), THREE, {"pair": True, "symmetric": True}),
    "multi_label": ("text_classifier", LABELS, THREE, {"multi_label": True}),
    "tagger": ("token_classifier", LABELS, THREE | {"crf": True}, {}),
    "reader": ("span_classifier", (), {}, {"no_answer_threshold": 0.0}),
    "masks": ("masked_lm", (), {}, {}),
    "encoder": (None, (), {}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_export(program, monkeypatch, tmp_path, kind):
    """The C loader answers as Python does, and a batch of ids of all lengths as each alone."""
    from serving.batching import Batcher, Parameters

    task, labels, arguments, settings = KINDS[kind]
    monkeypatch.setattr("keras_bert.export.saved_model.check", lambda *_: None)
    folder = keras_bert.export_saved_model(
        tiny_preset(task, labels, arguments, **settings), tmp_path / kind
    )
    with Runner(program, folder, threads=1) as runner:
        test_the_c_loader_answers_as_python_does(runner, folder.parent)

        ids = samples(runner, "ids_by_length")
        ids["segment_ids"] = np.where(np.arange(IDS.shape[1]) > 1, ids["token_ids"] != 0, 0)
        ids["segment_ids"] = ids["segment_ids"].astype("int32")
        requests = []
        for row, length in enumerate(ids["length"]):
            own = {name: array[row : row + 1] for name, array in ids.items()}
            requests.append(
                own | {name: own[name][:, :length] for name in ("token_ids", "segment_ids")}
            )
        batcher = Batcher(runner.run, Parameters(len(requests), 60_000_000, True))
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as threads:
            answers = list(threads.map(lambda own: batcher.run("ids_by_length", own), requests))
        for own, together in zip(requests, answers):
            alone = runner.run("ids_by_length", own)
            assert alone.keys() == together.keys()
            for name, array in alone.items():
                if array.ndim > 1:  # what other rows have more of is padded here
                    assert not together[name][:, array.shape[1] :].any()
                    together[name] = together[name][:, : array.shape[1]]
            assert_same(together, alone)


def test_no_python_in_the_process(runner):
    maps = pathlib.Path(f"/proc/{runner.process.pid}/maps")
    if not maps.exists():
        pytest.skip("which libraries a process has is only read on Linux, in /proc")
    names = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/" in line}
    libraries = {pathlib.Path(name.strip()).name for name in names}
    assert "libtensorflow_cc.so.2" in libraries
    assert not [name for name in libraries if name.startswith(("libpython", "python"))]
    assert not [name for name in libraries if "pywrap" in name or "tensorflow_text" in name]


def test_a_bad_request_is_named_and_the_runner_goes_on(runner):
    ids = samples(runner, "ids")
    longer = ids | {"segment_ids": np.zeros((5, 7), "int32")}
    bad = [
        ("nope", {}, Code.FAILED_PRECONDITION, '"nope" not found'),
        ("text", {}, Code.INVALID_ARGUMENT, '"text" is missing'),
        ("text", {"texts": ["a"]}, Code.INVALID_ARGUMENT, "\"texts\" isn't in the signature"),
        ("text", {"text": ["a"], "b": [1.0]}, Code.INVALID_ARGUMENT, "\"b\" isn't in the"),
        ("text", {"text": [1, 2]}, Code.INVALID_ARGUMENT, "to be string but int64"),
        ("text", {"text": [1j]}, Code.INVALID_ARGUMENT, "text: the runner reads no complex128"),
        ("ids", ids | {"token_ids": ids["token_ids"].astype("int64")}, Code.INVALID_ARGUMENT,
         "to be int32 but int64"),
        ("ids", longer, Code.INVALID_ARGUMENT, ""),
    ]  # fmt: skip
    for signature, inputs, code, message in bad:
        with pytest.raises(RunnerError) as error:
            runner.run(signature, inputs)
        assert error.value.code == code, error.value
        assert message in error.value.message
    outputs = runner.run("text", {"text": [b"good \xff\xfe hello", b"a\0b", b"good\0"]})
    assert len(outputs["label"]) == 3


def test_what_is_no_saved_model(program, tmp_path):
    with pytest.raises(RunnerError, match="NOT_FOUND: Could not find SavedModel"):
        Runner(program, tmp_path)


def test_a_killed_runner_is_an_error(program, exported):
    with Runner(program, exported / "1", threads=1) as runner:
        runner.process.kill()
        runner.process.wait()
        with pytest.raises(RunnerError, match="UNAVAILABLE: the runner ended: -9"):
            runner.run("text", {"text": ["good"]})


def test_grpc_clients(stub, runner):
    from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

    for signature in ("ids", "serving_default"):
        inputs = samples(runner, signature)
        response = stub.Predict(request_of(signature, inputs), timeout=20)
        assert_same(arrays_of(response), runner.run(signature, inputs))
        assert response.model_spec.version.value == 1
        assert response.model_spec.signature_name == signature
    request = request_of("", {"text": TEXTS})
    request.output_filter.append("label")
    response = stub.Predict(request, timeout=20)
    assert response.outputs.keys() == {"label"}
    assert isinstance(response, predict_pb2.PredictResponse)

    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "tone"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response = stub.GetModelMetadata(request, timeout=20)
    assert response.metadata["signature_def"].Unpack(signatures)
    assert dict(signatures.signature_def) == runner.signatures


def test_grpc_errors(stub):
    import grpc

    ids = {name: SAMPLES[name] for name in ("token_ids", "segment_ids")}
    unknown_version = request_of("text", {"text": ["a"]})
    unknown_version.model_spec.version.value = 7
    torn = request_of("text", {"text": ["a"]})
    torn.inputs["text"].tensor_shape.dim[0].size = 2
    torn.inputs["text"].string_val.extend([b"b", b"c"])
    filtered = request_of("text", {"text": ["a"]})
    filtered.output_filter.append("labels")
    for request, code, message in (
        (request_of("nope", {}), "FAILED_PRECONDITION", "nope"),
        (request_of("ids", ids), "INVALID_ARGUMENT", '"padding_mask" is missing'),
        (request_of("text", {"text": [1.0]}), "INVALID_ARGUMENT", "to be string but float"),
        (torn, "INVALID_ARGUMENT", "tensor parsing error: text"),
        (filtered, "INVALID_ARGUMENT", "not found in signature: labels"),
        (request_of("text", {"text": ["a"]}, "tune"), "NOT_FOUND", "Latest(tune)"),
        (unknown_version, "NOT_FOUND", "Specific(tone, 7)"),
    ):
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=20)
        assert error.value.code().name == code
        assert message in error.value.details()
    assert len(stub.Predict(request_of("text", {"text": ["a"]}), timeout=20).outputs) == 3


def test_rest_clients(server, runner):
    expected = runner.run("text", {"text": TEXTS})
    for path in (":predict", "/versions/1:predict"):
        for request in ({"instances": TEXTS}, {"instances": [{"text": text} for text in TEXTS]},
                        {"signature_name": "text", "instances": TEXTS}):  # fmt: skip
            status, reply = rest(server, path, request)
            assert status == 200
            for i, row in enumerate(reply["predictions"]):
                assert row["label"] == expected["label"][i].decode()
                assert row["scores"] == pytest.approx(expected["scores"][i].tolist(), abs=1e-5)
    coded = [{"b64": base64.b64encode(text.encode()).decode()} for text in TEXTS]
    for inputs in (TEXTS, {"text": TEXTS}, {"text": coded}):
        _, reply = rest(server, ":predict", {"inputs": inputs})
        assert reply["outputs"].keys() == expected.keys()
        assert reply["outputs"]["label"] == [label.decode() for label in expected["label"]]
        np.testing.assert_allclose(reply["outputs"]["score"], expected["score"], atol=1e-5)

    ids = {name: value.tolist() for name, value in samples(runner, "ids").items()}
    _, columns = rest(server, ":predict", {"signature_name": "ids", "inputs": ids})
    rows = [dict(zip(ids, row)) for row in zip(*ids.values())]
    _, by_row = rest(server, ":predict", {"signature_name": "ids", "instances": rows})
    assert [row["scores"] for row in by_row["predictions"]] == columns["outputs"]["scores"]

    assert rest(server, "")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    _, metadata = rest(server, "/metadata")
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert signatures["text"]["inputs"]["text"]["dtype"] == "DT_STRING"
    assert signatures["text"]["inputs"]["text"]["tensor_shape"]["dim"][0]["size"] == "-1"


def test_rest_errors(server):
    ids = {"token_ids": [[2, 3]], "segment_ids": [[0, 0]], "padding_mask": [[1, 1]]}
    for request, message in (
        (b"{", "JSON Parse error"),
        ([], "Is not object"),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"inputs": [], "instances": []}, "only one of"),
        ({"instances": []}, "instances"),
        ({"signature_name": "nope", "instances": ["a"]}, 'name: "nope" not found'),
        ({"instances": [7]}, "7 is not of expected type: string"),
        ({"instances": [{"texts": "a"}]}, "keys must be equal to: text"),
        ({"instances": [{"b64": "a"}]}, "not formatted correctly"),
        ({"signature_name": "ids", "inputs": ids["token_ids"]}, "multiple inputs"),
        ({"signature_name": "ids", "inputs": ids | {"token_ids": [[2, 2.5]]}}, "token_ids"),
        ({"signature_name": "ids", "inputs": ids | {"token_ids": [[2, 1 << 31]]}}, "int32"),
        ({"signature_name": "ids", "inputs": ids | {"token_ids": [[2], [3, 4]]}}, "size"),
        ({"signature_name": "ids", "inputs": {"token_ids": [[2]]}}, "padding_mask"),
        ({"signature_name": "ids", "instances": [{"token_ids": [2]}]}, "padding_mask"),
    ):
        status, reply = rest(server, ":predict", request)
        assert (status, list(reply)) == (400, ["error"]), reply
        assert message in reply["error"]
    text = {"instances": ["good"]}
    assert rest(server, ":predict", text, "tune") == (
        404, {"error": "Servable not found for request: Latest(tune)"},
    )  # fmt: skip
    assert rest(server, "/versions/7:predict", text)[0] == 404
    assert rest(server, ":classify", text)[0] == 400
    for raw in (b'{"instances": ["good \xff\xfe"]}', {"instances": [{"b64": "/w=="}]}):
        assert rest(server, ":predict", raw)[0] == 200


def test_the_form_of_rest_answers():
    from serving.rest_json import write_reply

    names = np.array([["a", "好"], ["", "b"]], object)
    coded = np.vectorize(str.encode, otypes=[object])(names)
    one = {"tags": coded}
    assert json.loads(write_reply(one, by_rows=True)) == {"predictions": names.tolist()}
    assert json.loads(write_reply(one, by_rows=False)) == {"outputs": names.tolist()}
    two = {"n": np.array([1, 2], "int32"), "raw_bytes": np.array([b"\xff", b""], object)}
    assert json.loads(write_reply(two, by_rows=True)) == {
        "predictions": [{"n": 1, "raw_bytes": {"b64": "/w=="}}, {"n": 2, "raw_bytes": {"b64": ""}}]
    }
    with pytest.raises(RunnerError, match="raw_bytes has inconsistent batch size: 2 expecting: 1"):
        write_reply(two | {"n": np.array([1])}, by_rows=True)


def test_a_batch_of_32_requests_answers_as_single_ones(serve, cold, runner, tmp_path):
    from serving.batching import Parameters

    file = tmp_path / "batching_parameters.txt"
    file.write_text(
        "# The timeout is never reached: what isn't joined isn't answered.\n"
        "max_batch_size { value: 32 }\nbatch_timeout_micros { value: 60000000 }\n"
        "num_batch_threads { value: 2 }\npad_variable_length_inputs: true\n",
        encoding="utf-8",
    )
    parameters = Parameters.read(file)
    assert parameters == Parameters(32, 60_000_000, True)
    texts = [f"{TEXTS[i % 5]} {'hello ' * (i % 7)}" for i in range(32)]
    single = [runner.run("text", {"text": [text]}) for text in texts]
    with serve(cold, parameters) as server, stub_at(server.port) as stub:
        futures = [stub.Predict.future(request_of("text", {"text": [text]}), timeout=20)
                   for text in texts]  # fmt: skip
        for future, expected in zip(futures, single):
            assert_same(arrays_of(future.result()), expected)
        with concurrent.futures.ThreadPoolExecutor(32) as threads:
            requests = [{"inputs": {"text": [text]}} for text in texts]
            replies = threads.map(lambda request: rest(server, ":predict", request), requests)
        for (status, reply), expected in zip(replies, single):
            assert status == 200
            np.testing.assert_allclose(reply["outputs"]["scores"], expected["scores"], atol=1e-5)
        status, reply = rest(server, ":predict", {"instances": ["good"] * 33})
        assert (status, "maximum input batch size 32" in reply["error"]) == (400, True)


def test_batches_of_several_lengths():
    from serving.batching import merge, padded

    short, long = np.array([[7, 8]]), np.array([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(RunnerError, match=r"FAILED_PRECONDITION: .*'ids'.*padding is turned off"):
        merge("ids", [short, long], pad=False)
    assert merge("ids", [short, long], pad=True).tolist() == [[7, 8, 7], [1, 2, 3], [4, 5, 6]]
    words = np.array([[b"a"], [b"b"]], object)
    assert padded(words, (2,)).tolist() == [[b"a", b"a"], [b"b", b"a"]]
    with pytest.raises(RunnerError, match="empty tensor"):
        padded(np.zeros((1, 0)), (2,))


def test_an_error_is_that_of_the_whole_batch(runner):
    from serving.batching import Batcher, Parameters

    batcher = Batcher(runner.run, Parameters(2, 60_000_000, True))
    ids = {name: np.asarray(value)[:1] for name, value in samples(runner, "ids").items()}
    bad = ids | {"token_ids": ids["token_ids"] + 100}
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(batcher.run, "ids", inputs) for inputs in (ids, bad)]:
            with pytest.raises(RunnerError, match="INVALID_ARGUMENT"):
                future.result(20)


def test_a_new_version_takes_over(serve, cold, tmp_path):
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    def add(number, warm_up=None):
        """Version 1 once more, perhaps with a warm-up request to a signature."""
        folder = shutil.copytree(cold / "1", tmp_path / "unfinished")
        if warm_up:
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request_of(warm_up, ids))
            extra = folder / "assets.extra"
            extra.mkdir()
            with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
                writer.write(log.SerializeToString())
        folder.rename(models / str(number))

    def served():
        return rest(server, "")[1]["model_version_status"][0]["version"]

    models = tmp_path / "tone"
    models.mkdir()
    ids = {name: SAMPLES[name][:1] for name in ("token_ids", "segment_ids", "padding_mask")}
    inputs = {name: array.tolist() for name, array in ids.items()}
    request = {"signature_name": "ids", "inputs": inputs}
    with serve(models, None, 0.05) as server:
        assert rest(server, "")[0] == 404
        add(1)
        wait_until(lambda: rest(server, "")[0] == 200)
        add(2, "no signature of it")
        (models / "3").mkdir()
        wait_until(lambda: server.model.failed == {2, 3})
        assert served() == "1"
        add(10, "ids")
        wait_until(lambda: served() == "10")
        assert rest(server, "/versions/10:predict", request)[0] == 200
        assert rest(server, "/versions/1:predict", request)[0] == 404
