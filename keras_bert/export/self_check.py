"""The check of a new export: elsewhere, with TensorFlow alone, it must answer like the model."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2

from keras_bert.export import self_check_process
from keras_bert.export.warm_up import tensor_proto

TOLERANCE = 1e-5
STDERR_LINES = 20


class ExportError(RuntimeError):
    """An export isn't what it was made from: a fault of the code that made it."""


def check(
    folder: str | os.PathLike[str],
    requests: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
) -> None:
    """Refuses a SavedModel that needs more than core TensorFlow, or that answers otherwise.

    A copy of it in another folder is loaded and asked by a fresh process, on the CPU (the
    accelerator is this process's), that can't import Keras, keras_bert or TensorFlow Text.

    Args:
        folder: The SavedModel's.
        requests: Of each: the signature; its inputs and the outputs that are expected, by name,
            as arrays or nested lists. Strings and integers must be equal, floats within 1e-5, of
            large ones relative.

    Raises:
        ExportError: An op isn't TensorFlow's own; the graph holds the path of the export or of
            this package; the process fails; or an output differs.
    """
    _check_graph(pathlib.Path(folder))
    answers = _answers(folder, [request[:2] for request in requests])
    for number, ((signature, _, expected), given) in enumerate(zip(requests, answers, strict=True)):
        where = f"the export's signature `{signature}` in request {number}"
        if set(given) != set(expected):
            raise ExportError(
                f"The outputs of {where} are {sorted(given)} instead of {sorted(expected)}."
            )
        for name, value in expected.items():
            _compare(
                f"Output `{name}` of {where}", given[name], tf.make_ndarray(tensor_proto(value))
            )


def _check_graph(folder: pathlib.Path) -> None:
    content = (folder / "saved_model.pb").read_bytes()
    for path in (folder, pathlib.Path(__file__).parents[1]):
        if os.fsencode(path.absolute()) in content or os.fsencode(path.resolve()) in content:
            raise ExportError(f"The export's graph holds the path {path}, so it can't be moved.")
    # `raw_ops` names TensorFlow's own, whatever other libraries have registered here.
    foreign = {op for op in ops(folder) if not hasattr(tf.raw_ops, op)}
    if foreign:
        names = ", ".join(sorted(foreign))
        raise ExportError(f"The export's graph has ops that aren't TensorFlow's own: {names}.")


def ops(folder: pathlib.Path) -> set[str]:
    """The names of all operations in a SavedModel."""
    names = set()
    content = (folder / "saved_model.pb").read_bytes()
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        graph = meta_graph.graph_def
        functions = {function.signature.name for function in graph.library.function}
        nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
        names |= {node.op for node in nodes} - functions
    return names


def _answers(
    folder: str | os.PathLike[str], requests: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[dict[str, np.ndarray]]:
    """Asks a copy of the export in a process of its own."""
    sent = [(signature, _encoded(inputs)) for signature, inputs in requests]
    with tempfile.TemporaryDirectory(prefix="keras_bert_") as temporary:
        model, asked, answered = (pathlib.Path(temporary, name) for name in ("copy", "in", "out"))
        shutil.copytree(folder, model)
        asked.write_text(json.dumps(sent), encoding="utf-8")
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        # -P: the modules beside the file aren't to be found by their bare names.
        process = subprocess.run(  # noqa: S603
            [sys.executable, "-P", self_check_process.__file__, model, asked, answered],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if process.returncode != 0:
            lines = process.stderr.decode("utf-8", "replace").splitlines()
            raise ExportError(
                "The export can't be loaded and asked by a process that has TensorFlow alone "
                f"(exit code {process.returncode}):\n" + "\n".join(lines[-STDERR_LINES:])
            )
        return [_decoded(outputs) for outputs in json.loads(answered.read_bytes())]


def _encoded(values: Mapping[str, Any]) -> dict[str, str]:
    """Tensors as self_check_process.py reads them."""
    return {
        name: base64.b64encode(tensor_proto(value).SerializeToString()).decode()
        for name, value in values.items()
    }


def _decoded(tensors: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Arrays of what self_check_process.py wrote; strings are bytes."""
    protos = {name: base64.b64decode(encoded) for name, encoded in tensors.items()}
    return {
        name: tf.make_ndarray(tensor_pb2.TensorProto.FromString(proto))
        for name, proto in protos.items()
    }


def _compare(what: str, given: np.ndarray, expected: np.ndarray) -> None:
    if (given.dtype, given.shape) != (expected.dtype, expected.shape):
        raise ExportError(
            f"{what} is {given.dtype} {given.shape} instead of {expected.dtype} {expected.shape}."
        )
    if expected.dtype.kind == "f":
        equal = np.isclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE)
    else:
        equal = given == expected
    if not equal.all():
        place = tuple(np.argwhere(~equal)[0].tolist())
        raise ExportError(
            f"{what}, row {place[0]}, is {_shown(given[place])} instead of "
            f"{_shown(expected[place])} (element {list(place)})."
        )


def _shown(value: Any) -> str:
    return repr(value.decode("utf-8", "replace")) if isinstance(value, bytes) else str(value)
