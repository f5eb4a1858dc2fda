"""The client of `saved_model_runner.c`: numpy arrays in, numpy arrays out.

program = build(folder)
with Runner(program, "export/1") as runner:
    outputs = runner.run("text", {"text": ["one", "two"]})
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import struct
import subprocess
import threading

import numpy as np

SOURCE = pathlib.Path(__file__).with_name("saved_model_runner.c")
STRING = 7
# NumPy's types by TF_DataType, without strings.
DTYPES = {
    number: np.dtype(name)
    for number, name in {
        **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8"},
        **{9: "int64", 10: "bool", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64"},
    }.items()
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class Code(enum.IntEnum):
    """The numbers that TF_Code and gRPC share."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RunnerError(Exception):
    """What came instead of outputs; `code` is a `Code`, or another number of TF_Code."""

    def __init__(self, code: int, message: str):
        name = Code(code).name if code in set(Code) else f"code {code}"
        super().__init__(f"{name}: {message}")
        self.code, self.message = code, message


def missing_tool() -> str | None:
    """Says why the program can't be built here, or None if it can."""
    if shutil.which("gcc") is None:
        return "the C loader isn't built: needs gcc"
    if not (tensorflow_folder() / "libtensorflow_cc.so.2").exists():
        return "the C loader isn't built: this tensorflow wheel has no libtensorflow_cc.so.2"
    return None


def tensorflow_folder() -> pathlib.Path:
    """The installed package, without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec and spec.origin, "tensorflow isn't installed"
    return pathlib.Path(spec.origin).parent


def build(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Compiles the runner into `folder` against the installed tensorflow wheel."""
    folder, wheel = pathlib.Path(folder), tensorflow_folder()
    # ld needs 15 s to read the library's gigabyte of symbols: it gets an empty library of the
    # same name that has just the functions called here. Running, the program loads the real one.
    called = sorted(set(re.findall(r"\bTF_\w+(?=\()", SOURCE.read_text(encoding="utf-8"))))
    stub = folder / "stub.c"
    stub.write_text("".join(f"void {name}(void) {{}}\n" for name in called), encoding="utf-8")
    library, program = folder / "libtensorflow_cc.so.2", folder / "saved_model_runner"
    gcc = ("gcc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra")
    subprocess.run(
        [*gcc, "-shared", "-Wl,-soname,libtensorflow_cc.so.2", "-o", library, stub], check=True
    )
    subprocess.run(
        [
            *gcc,
            "-isystem",
            wheel / "include",
            "-o",
            program,
            SOURCE,
            library,
            f"-Wl,-rpath,{wheel}",
        ],
        check=True,
    )
    library.unlink()
    return program


class Runner:
    """A SavedModel in a process of its own, without Python.

    Answers one request at a time; may be called from several threads.

    Args:
        program: what `build` returned.
        folder: the SavedModel.
        threads: TensorFlow's threads inside and among ops; by default as many as it likes.

    Raises:
        RunnerError: the SavedModel can't be loaded.
    """

    def __init__(self, program: pathlib.Path, folder: str | os.PathLike[str], threads: int = 0):
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
        if threads:
            environment |= dict.fromkeys(
                ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), str(threads)
            )
        self.process = subprocess.Popen(
            [program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._lock = threading.Lock()
        try:
            self._meta_graph = self._receive()
        except RunnerError:
            self.close()
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, after the request that it's at."""
        with self._lock:
            with contextlib.suppress(BrokenPipeError):  # It ended before.
                self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()

    @functools.cached_property
    def signatures(self) -> dict:
        """SignatureDef by name, as the SavedModel has them."""
        from tensorflow.core.protobuf import meta_graph_pb2

        return dict(meta_graph_pb2.MetaGraphDef.FromString(self._meta_graph).signature_def)

    def run(self, signature: str, inputs: dict[str, object]) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: arrays (or what `np.asarray` takes) by name; strings as bytes or str. Of what
                type they must be the SavedModel alone decides.

        Returns:
            The signature's outputs by name; strings as bytes in an array of objects.

        Raises:
            RunnerError: what TensorFlow says; the runner goes on. Code UNAVAILABLE if it doesn't.
        """
        packed = [pack_string(signature.encode()), struct.pack("<I", len(inputs))]
        packed += [pack_tensor(name, value) for name, value in inputs.items()]
        return unpack_tensors(self._exchange(b"".join(packed)))

    def _exchange(self, request: bytes) -> memoryview:
        with self._lock:
            if self.process.stdin.closed:
                raise RunnerError(Code.UNAVAILABLE, "the runner was closed")
            try:
                self.process.stdin.write(struct.pack("<Q", len(request)) + request)
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # The process has ended: there is nothing to receive either.
            return self._receive()

    def _receive(self) -> memoryview:
        stdout = self.process.stdout
        [size] = struct.unpack("<Q", stdout.read(8) or bytes(8))
        reply = memoryview(stdout.read(size))
        if not reply:
            raise RunnerError(Code.UNAVAILABLE, f"the runner ended: {self.process.wait()}")
        [code] = struct.unpack_from("<I", reply)
        if code:
            raise RunnerError(code, str(reply[8:], "utf-8", "replace"))
        return reply[4:]


def pack_string(string: bytes) -> bytes:
    return struct.pack("<I", len(string)) + string


def pack_tensor(name: str, value: object) -> bytes:
    """A named array in the form that the C program describes."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        # NumPy's own strings lose the zero bytes at their end.
        array = np.asarray(value, object)
        strings = [s if isinstance(s, bytes) else str(s).encode() for s in array.flat]
        number, data = STRING, b"".join(map(pack_string, strings))
    elif array.dtype in NUMBERS:
        number, data = NUMBERS[array.dtype], array.tobytes()
    else:
        raise RunnerError(Code.INVALID_ARGUMENT, f"{name}: the runner reads no {array.dtype}")
    sizes = struct.pack(f"<II{array.ndim}qQ", number, array.ndim, *array.shape, len(data))
    return pack_string(name.encode()) + sizes + data


def unpack_tensors(reply: memoryview) -> dict[str, np.ndarray]:
    """The named arrays of a reply."""

    def take(layout: str) -> tuple:
        nonlocal reply
        values = struct.unpack_from(layout, reply)
        reply = reply[struct.calcsize(layout) :]
        return values

    def take_string() -> bytes:
        nonlocal reply
        [size] = take("<I")
        string, reply = bytes(reply[:size]), reply[size:]
        return string

    tensors = {}
    for _ in range(*take("<I")):
        name = take_string().decode()
        number, rank = take("<II")
        *shape, size = take(f"<{rank}qQ")
        if number == STRING:
            array = np.empty(shape, object)
            for i in range(array.size):
                array.flat[i] = take_string()
        else:
            array = np.frombuffer(reply[:size], DTYPES[number]).reshape(shape)
            reply = reply[size:]
        tensors[name] = array
    return tensors


def check_against(module, runner: Runner, signature: str, inputs: dict[str, object]) -> dict:
    """Asserts that a signature answers as it does in Python; returns the answers.

    Args:
        module: what `tf.saved_model.load` made of the runner's SavedModel.
    """
    import tensorflow as tf

    expected = module.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    outputs = runner.run(signature, inputs)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        array = value.numpy()
        assert outputs[name].dtype == array.dtype, name
        assert outputs[name].shape == array.shape, name
        if array.dtype == object:
            assert outputs[name].tolist() == array.tolist(), name
        else:
            np.testing.assert_allclose(outputs[name], array, rtol=0, atol=1e-5, err_msg=name)
    return outputs
