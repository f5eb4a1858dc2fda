"""Names of hubs: a local server that speaks as Hugging Face does, and all that may go wrong."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.checkpoints import hub
from keras_bert.errors import InputError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
OTHERS = ("README.md", "tf_model.h5", "flax_model.msgpack", "onnx/model.safetensors", "run.py")
# Asks for each of the names that come as JSON, and prints what came of it.
# The packages are empty ones of the right paths: `hub` needs no Keras, whose import takes seconds.
CLIENT = """
import json, sys, time, types
for name, path in (("keras_bert", sys.argv[2]), ("keras_bert.checkpoints", sys.argv[3])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from keras_bert.checkpoints import hub
from keras_bert.errors import InputError

outcomes = {}
for name in json.loads(sys.argv[1]):
    started = time.perf_counter()
    try:
        outcome = str(hub.local_folder(name))
    except InputError as error:
        outcome = f"error: {error}"
    outcomes[name] = outcome, time.perf_counter() - started
print(json.dumps(outcomes))
"""


def ask(names, **environment):
    """What `local_folder` answers in a process of its own; the hubs read their settings once."""
    folders = [*keras_bert.__path__, *keras_bert.checkpoints.__path__]
    result = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(names), *folders],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert all(seconds < 10 for _, seconds in outcomes.values())
    return {name: outcome for name, (outcome, _) in outcomes.items()}


def serve(repositories, asked):
    """A server of repositories, (name, revision) -> folder; notes the files that are asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, content, status=200, **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_GET(self):
            path = self.path.split("?")[0].strip("/").removeprefix("api/models/")
            owner, repository, action, revision, *rest = f"{path}////".split("/")
            name = f"{owner}/{repository}"
            if name == "owner/gated":
                return self.answer(b"", 403, X_Error_Code="GatedRepo")
            known = [folder for (known, _), folder in repositories.items() if known == name]
            if not known:
                return self.answer(b"", 401, X_Error_Code="RepoNotFound")
            if revision == COMMIT:
                folder = known[0]
            elif (name, revision) in repositories:
                folder = repositories[name, revision]
            else:
                return self.answer(b"", 404, X_Error_Code="RevisionNotFound")
            paths = [path for path in folder.rglob("*") if path.is_file()]
            if action == "revision":
                return self.answer(json.dumps({"id": name, "sha": COMMIT}).encode())
            if action == "tree":
                tree = [{"type": "file", "path": path.relative_to(folder).as_posix(),
                         "size": path.stat().st_size, "oid": f"{i:040x}"}
                        for i, path in enumerate(paths)]  # fmt: skip
                return self.answer(json.dumps(tree).encode(), Content_Type="application/json")
            file = "/".join(rest).strip("/")
            asked.append(f"{name}/{file}")
            headers = {"ETag": f'"{abs(hash(file)):x}"', "X_Repo_Commit": COMMIT}
            return self.answer((folder / file).read_bytes(), **headers)

        do_HEAD = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def preset():
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=8, activation="gelu_tanh",
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    return keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), encoder)


@pytest.fixture(scope="module")
def answers(preset, tmp_path_factory):
    """What a server's client was told, name by name, and the files that it asked for."""
    pytest.importorskip("huggingface_hub", reason="huggingface-hub isn't installed")
    pytest.importorskip("safetensors", reason="safetensors isn't installed")
    folder = tmp_path_factory.mktemp("hub")
    repositories = {}
    for name, format in (("bert", "huggingface"), ("hub", "keras_hub"), ("ours", "preset")):
        repositories[f"owner/{name}", "main"] = folder / name
        keras_bert.save(preset, folder / name, format=format)
    for other in (*OTHERS, "pytorch_model.bin"):
        (folder / "bert" / other).parent.mkdir(exist_ok=True)
        (folder / "bert" / other).write_bytes(b"not to be asked for")
    repositories["owner/bert", "v1.0"] = repositories["owner/bert", "main"]
    repositories["owner/older", "main"] = folder / "older"
    (folder / "older").mkdir()
    for name in ("config.json", "pytorch_model.bin", "vocab.txt"):
        (folder / "older" / name).write_bytes(b"{}")

    asked: list[str] = []
    server = serve(repositories, asked)
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "cache"),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    names = ["bert", "bert@v1.0", "hub", "ours", "older", "gated", "none", "bert@v2"]
    outcomes = ask([f"hf://owner/{name}" for name in names], **environment)
    server.shutdown()
    server.server_close()
    offline = ask(["hf://owner/bert", "hf://owner/none"], **environment, HF_HUB_OFFLINE="1")
    return outcomes, asked, offline


@pytest.mark.parametrize("name", ["bert", "bert@v1.0", "hub", "ours"])
def test_downloaded_presets(answers, preset, name):
    again = keras_bert.load(answers[0][f"hf://owner/{name}"])
    assert again.tokenizer.vocabulary == VOCABULARY
    for ours, theirs in zip(again.model.weights, preset.model.weights):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours.value), keras.ops.convert_to_numpy(theirs.value)
        )


def test_only_files_that_are_read(answers):
    outcomes, asked, _ = answers
    assert {name for name in asked if name.startswith("owner/bert/")} == {
        f"owner/bert/{name}" for name in
        ("config.json", "model.safetensors", "special_tokens_map.json", "tokenizer_config.json",
         "vocab.txt")}  # fmt: skip
    assert "owner/hub/assets/tokenizer/vocabulary.txt" in asked
    # The pickle is asked for where there's nothing else.
    older = pathlib.Path(outcomes["hf://owner/older"])
    assert {path.name for path in older.iterdir()} == {
        "config.json", "pytorch_model.bin", "vocab.txt"}  # fmt: skip


def test_what_hugging_face_refuses(answers):
    outcomes, _, offline = answers
    for name, words in (
        ("gated", "accept its terms: do so at https://huggingface.co/owner/gated"),
        ("none", "doesn't exist or is private: check the spelling, or log in"),
        ("bert@v2", "has no revision v2"),
    ):
        assert outcomes[f"hf://owner/{name}"].startswith(f"error: hf://owner/{name} ")
        assert words in outcomes[f"hf://owner/{name}"]
    # Without the network, the cache serves what it has.
    assert offline["hf://owner/bert"] == outcomes["hf://owner/bert"]
    assert "isn't whole in the cache: go online, without HF_HUB_OFFLINE" in (
        offline["hf://owner/none"])  # fmt: skip


def test_no_network(tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface-hub isn't installed")
    pytest.importorskip("kagglehub", reason="kagglehub isn't installed")
    # Nothing listens at port 9.
    nowhere = "http://127.0.0.1:9"
    hugging_face, kaggle = "hf://owner/bert", "kaggle://keras/bert/keras/bert_base_en"
    outcomes = ask(
        [hugging_face, kaggle], HF_ENDPOINT=nowhere, HF_HOME=str(tmp_path), HTTPS_PROXY=nowhere,
        https_proxy=nowhere, KAGGLEHUB_CACHE=str(tmp_path),
    )  # fmt: skip
    for name in outcomes:
        assert outcomes[name].startswith(f"error: {name} can't be reached (")
        assert outcomes[name].endswith("or download it on another machine and give its folder.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nohub://owner/name", r"nohub://owner/name can't be opened: Protocol not known"),
        ("hf://name", "hf://name must be like hf://owner/name"),
        ("hf://owner/name/more", "must be like hf://owner/name or hf://owner/name@revision"),
        ("hf://../../etc/passwd", "must be like"),
        ("hf://owner/name@", "must be like"),
        ("kaggle://bert_base_en", "must be like kaggle://keras/bert/keras/bert_base_en"),
        ("kaggle://keras/bert/keras/bert_base_en/latest", "with or without /version"),
    ],
)
def test_names_that_are_none(name, message):
    with pytest.raises(InputError, match=message):
        keras_bert.load(name)


def test_a_name_that_hugging_face_refuses():
    pytest.importorskip("huggingface_hub", reason="huggingface-hub isn't installed")
    with pytest.raises(InputError, match=r"hf://a\.\.b/c isn't a name of Hugging Face"):
        keras_bert.load("hf://a..b/c")


@pytest.mark.parametrize(
    ("package", "name", "message"),
    [
        ("huggingface_hub", "hf://owner/name", r"pip install 'keras3-bert\[huggingface\]'"),
        ("kagglehub", "kaggle://keras/bert/keras/bert_base_en", "pip install kagglehub"),
    ],
)
def test_missing_package(monkeypatch, package, name, message):
    monkeypatch.setitem(sys.modules, package, None)  # as if it weren't installed
    with pytest.raises(InputError, match=f"{name} needs a package: `{message}`"):
        keras_bert.load(name)


@pytest.fixture
def kaggle(monkeypatch):
    """A stand-in for kagglehub, which answers as it's told to and keeps what it was asked."""
    asked: list[str] = []

    def download(name):
        asked.append(name)
        if isinstance(module.answer, Exception):
            raise module.answer
        return module.answer

    module = types.ModuleType("kagglehub")
    module.model_download, module.answer, module.asked = download, None, asked
    monkeypatch.setitem(sys.modules, "kagglehub", module)
    return module


def test_kaggle(kaggle, preset, tmp_path):
    keras_bert.save(preset, tmp_path / "a", format="keras_hub")
    kaggle.answer = str(tmp_path / "a")
    keras_bert.load("kaggle://keras/bert/keras/bert_base_en")
    keras_bert.load("kaggle://keras/bert/keras/bert_base_en/3")
    assert kaggle.asked == ["keras/bert/keras/bert_base_en", "keras/bert/keras/bert_base_en/3"]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "asks for a login"),
        (403, "is private, or its terms must be accepted"),
        (404, "doesn't exist: check the spelling"),
        (500, r"couldn't be downloaded \(500\): try again"),
    ],
)
def test_what_kaggle_refuses(kaggle, status, message):
    requests = pytest.importorskip("requests", reason="requests isn't installed")
    response = requests.Response()
    response.status_code = status
    kaggle.answer = requests.HTTPError(str(status), response=response)
    with pytest.raises(InputError, match=f"kaggle://a/b/keras/c {message}"):
        keras_bert.load("kaggle://a/b/keras/c")


def test_a_folder_stays_as_it_is(tmp_path):
    assert hub.local_folder(tmp_path) == tmp_path
    assert hub.local_folder(str(tmp_path)) == tmp_path
