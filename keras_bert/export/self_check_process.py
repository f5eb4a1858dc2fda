"""A process that has TensorFlow and nothing else: it runs the signatures of an export.

    python -P self_check_process.py MODEL REQUESTS ANSWERS

MODEL is a SavedModel's folder. REQUESTS is JSON, a list of [signature, {input: tensor}];
ANSWERS will be JSON, a list of {output: tensor}. A tensor is a TensorProto in base64.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import types

REFUSED = ("keras", "keras_bert", "keras_hub", "tensorflow_text")


class Refuse(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets nothing be imported that a server doesn't have.

    TensorFlow asks whether Keras is there before it tries to import it: modules are found, and
    only their import fails.
    """

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def] # noqa: D102
        if name.partition(".")[0] in REFUSED:
            return importlib.machinery.ModuleSpec(name, self, origin="refused")
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:  # noqa: D102
        raise ImportError(f"{spec.name} is refused: an export may need TensorFlow alone")

    def exec_module(self, module: types.ModuleType) -> None:  # noqa: D102
        pass


def main(folder: str, requests: str, answers: str) -> None:
    """Loads the model, asks it and writes its answers; what fails ends the process."""
    sys.meta_path.insert(0, Refuse())
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    model = tf.saved_model.load(folder)
    given = []
    for number, (signature, inputs) in enumerate(json.loads(pathlib.Path(requests).read_bytes())):
        tensors = {}
        for name, encoded in inputs.items():
            proto = tensor_pb2.TensorProto.FromString(base64.b64decode(encoded))
            tensors[name] = tf.constant(tf.make_ndarray(proto), tf.as_dtype(proto.dtype))
        try:
            outputs = model.signatures[signature](**tensors)
        except Exception as error:
            error.add_note(f"That was signature `{signature}` in request {number}.")
            raise
        protos = {name: tf.make_tensor_proto(y.numpy(), y.dtype) for name, y in outputs.items()}
        given.append(
            {name: base64.b64encode(y.SerializeToString()).decode() for name, y in protos.items()}
        )
    pathlib.Path(answers).write_text(json.dumps(given), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
