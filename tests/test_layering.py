"""Who may import whom: arrows go one way, and TensorFlow stays in its rooms."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_bert

PACKAGE = pathlib.Path(keras_bert.__file__).parent
# A room -> what it may use besides itself.
ARROWS = {
    "errors": set(),
    "files": set(),
    "remote": {"errors"},
    "recipe": {"errors", "files", "remote"},
    "layers": set(),
    "models": {"layers"},
    "training": {"errors", "files"},
    "tasks": {"layers", "training"},
    "unicode_table": set(),
    "packed_characters": {"unicode_table"},
    "wordpiece_graph": {"packed_characters", "unicode_table"},
    "fast_wordpiece": {"packed_characters", "unicode_table", "wordpiece_graph"},
    "tokenizers": {"errors", "fast_wordpiece", "unicode_table", "wordpiece_graph"},
    "tokenizer_checks": {"tokenizers", "unicode_table"},
    "data": {
        *("entities", "errors", "files", "long_texts", "remote", "report", "tokenizers"),
        *("unicode_table", "windows"),
    },
    "entities": set(),
    "answer_scores": set(),
    "windows": {"errors", "tokenizers"},
    "scores": set(),
    "long_texts": {"tokenizers"},
    "text_logits": {"checkpoints", "long_texts", "predictions"},
    "finetuning": {"checkpoints", "errors", "files", "layers", "recipe", "report", "training"},
    "text_tasks": {
        *("answers", "checkpoints", "errors", "evaluation", "files", "finetuning", "report"),
        *("scores", "tasks"),
    },
    "checkpoints": {
        *("errors", "files", "layers", "models", "remote", "tasks", "tokenizers"),
        "tokenizer_checks",
    },
    "resizing": {"checkpoints", "tokenizers"},
    "evaluation": {"tokenizers"},
    "answers": {"entities", "errors", "evaluation"},
    "predictions": {"training"},
    "inference": {
        *("answers", "checkpoints", "errors", "layers", "predictions", "text_logits"),
        *("tokenizers", "windows"),
    },
    "pretraining": {
        *("checkpoints", "data", "errors", "evaluation", "files", "recipe", "remote"),
        *("report", "training"),
    },
    "export": {
        *("answers", "checkpoints", "entities", "errors", "files", "inference", "layers"),
        *("predictions", "tokenizers", "windows", "wordpiece_graph"),
    },
    "report": {"files"},
    "busy": set(),
    "machine": set(),
    "speed": {"layers", "training"},
    "doctor": {"busy", "machine", "models", "speed", "tasks", "training"},
    "bench": {
        *("busy", "checkpoints", "data", "doctor", "errors", "machine", "speed", "tasks"),
        "training",
    },
    "__main__": {"recipe"},
}
TENSORFLOW_ROOMS = {"data", "export", "fast_wordpiece", "tokenizers", "wordpiece_graph"}
TENSORFLOW_FILES = {
    *("google.py", "tensorflow_adam.py", "tensorflow_loop.py", "tensorflow_ops.py"),
    *("tensorflow_recompute.py", "tensorflow_strategies.py"),
}


def room(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: pathlib.Path) -> set[str]:
    """Full names of the modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules() -> list[pathlib.Path]:
    paths = PACKAGE.rglob("*.py")
    return [path for path in paths if room(path) not in ("__init__", "recipes")]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows(path):
    used = {name.split(".")[1] for name in imports(path) if name.startswith("keras_bert.")}
    assert used - {room(path)} <= ARROWS[room(path)]
    if room(path) in TENSORFLOW_ROOMS or path.name in TENSORFLOW_FILES:
        return
    assert not [name for name in imports(path) if name.split(".")[0] == "tensorflow"]


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow is the backend")
def test_import_without_tensorflow():
    code = """
import sys, keras_bert
model = keras_bert.tasks.pretraining(keras_bert.bert(keras_bert.BertConfig.of_size("tiny")))
assert not {"tensorflow", "tensorflow_text", "keras_hub"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_other_keras_bert_is_refused(tmp_path):
    metadata = tmp_path / "keras_bert-0.89.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: keras-bert\nVersion: 0.89.0\n", encoding="utf-8"
    )
    message = error_of("import keras_bert", {"PYTHONPATH": os.pathsep.join(
        [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])})  # fmt: skip
    assert "pip uninstall keras-bert keras3-bert" in message


def test_no_backend_is_said():
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: (
    None if name in ("tensorflow", "jax", "torch") else find(name, *a)
)
import keras_bert
"""
    assert "pip install 'keras3-bert[tensorflow]'" in error_of(code, {})


def error_of(code: str, environment: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    return result.stderr.splitlines()[-1]


def test_nothing_loads_code():
    """No pickle, no eval: what's read can't run."""
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)
                  and isinstance(node.func, ast.Name)}  # fmt: skip
        assert not called & {"eval", "exec", "compile", "__import__"}, path
        source = path.read_text(encoding="utf-8")
        for word in ("allow_pickle=True", "safe_mode=False", "weights_only=False", "load_model("):
            assert word not in source, path
        assert not {name.split(".")[0] for name in imports(path)} & {
            "pickle",
            "marshal",
            "shelve",
            "joblib",
            "yaml",
        }, path
