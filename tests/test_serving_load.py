"""Ten thousand requests: an export and a server answer all, and stay as large as they were."""

from __future__ import annotations

import pathlib
import random

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is made on TensorFlow", allow_module_level=True)

from conftest import TESTS
from test_golden import TINY, assign, tiny_encoder
from test_serving import program, request_of, serve, stub_at, wire  # noqa: F401

import keras_bert
from keras_bert.export.signatures import TEXT_BYTES

REQUESTS, WARM = 10_000, 1_000
MEGABYTES = 50
WORDS = ["the", "cat", "sat", "on", "a", "mat", "好", "bad", "good", "(", ")", ",", "unheard", "É"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny golden model, exported as a classifier of texts."""
    with np.load(TESTS / "golden" / "weights_tiny_seqcls_3.npz") as file:
        weights = dict(file)
    encoder = tiny_encoder()
    model = keras_bert.tasks.text_classifier(encoder, 3)
    assign(model, weights)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = special + WORDS[:-2]
    vocabulary += [f"[unused{i}]" for i in range(100 - len(vocabulary))]
    tokenizer = keras_bert.WordPiece(vocabulary)
    settings = {"max_sequence_length": 48}
    config = keras_bert.BertConfig(**TINY)
    preset = keras_bert.Preset(config, encoder, tokenizer, model, (), settings)
    return keras_bert.export_saved_model(preset, tmp_path_factory.mktemp("models") / "tone").parent


def requests():
    """Ten thousand lists of 1 to 8 texts of 0 to 60 words; the same ones in every test."""
    draw = random.Random(0)
    for _ in range(REQUESTS):
        yield [
            " ".join(draw.choices(WORDS, k=draw.randint(0, 60))) for _ in range(draw.randint(1, 8))
        ]


def megabytes_of(pid):
    """Resident memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("a process's memory is only read on Linux, in /proc")
    [line] = [x for x in status.read_text().splitlines() if x.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def test_in_python_no_request_is_traced_and_memory_stays(folder, monkeypatch):
    exported = keras_bert.load_saved_model(folder)
    traced = []
    graph = type(exported.signatures["text"].graph)
    init = graph.__init__
    monkeypatch.setattr(graph, "__init__", lambda *a, **k: (traced.append(a), init(*a, **k))[1])
    for number, texts in enumerate(requests()):
        if number == WARM:
            before = megabytes_of("self")
            traced.clear()
        assert len(exported(texts)) == len(texts)
    assert not traced  # no graph was made
    assert megabytes_of("self") - before < MEGABYTES


def test_a_server_answers_all_and_goes_on_after_errors(serve, folder, tmp_path):  # noqa: F811
    grpc = pytest.importorskip("grpc")
    wrong = [
        (request_of("text", {}), "missing"),
        (request_of("text", {"text": [1.0]}), "string"),
        (request_of("text", {"text": ["x" * (TEXT_BYTES + 1)]}), f"{TEXT_BYTES:,} bytes"),
    ]
    with serve(folder) as server, stub_at(server.port) as stub:
        with server.model.version("tone") as version:
            pid = version.runner.process.pid
        for number, texts in enumerate(requests()):
            if number == WARM:
                before = megabytes_of(pid)
            if number % 500 == 0:
                request, message = wrong[number // 500 % len(wrong)]
                with pytest.raises(grpc.RpcError) as error:
                    stub.Predict(request, timeout=20)
                assert error.value.code().name == "INVALID_ARGUMENT"
                assert message in error.value.details()
            response = stub.Predict(request_of("text", {"text": texts}), timeout=20)
            assert response.outputs["label"].tensor_shape.dim[0].size == len(texts)
        assert megabytes_of(pid) - before < MEGABYTES
