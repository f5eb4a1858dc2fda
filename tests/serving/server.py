"""A stand-in for TensorFlow Serving in tests: its wire over its SavedModel loader.

    python -m tests.serving.server --model_name NAME --model_base_path FOLDER \
        [--port 8500] [--rest_api_port 8501] [--enable_batching] \
        [--batching_parameters_file FILE] [--file_system_poll_wait_seconds 1]

The flags are TensorFlow Serving's, except that port 0 means any free one; it serves on this
machine alone. FOLDER holds a folder a version (1/, 2/ ...). The highest is served; a higher one
that appears is loaded, warmed up by its `assets.extra/tf_serving_warmup_requests`, and takes over.

Real are the loader and the session (`saved_model_runner.c`, a process without Python) and the
messages of gRPC (`Predict`, `GetModelMetadata`) and REST (`:predict`, status, `/metadata`). What
lies between is a small rewrite: one version at a time, one request at a time in the session, no
Classify and Regress, no labels of versions. No figure of it says how fast TensorFlow Serving is.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.server
import json
import pathlib
import re
import signal
import sys
import tempfile
import threading

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from . import rest_json
from .batching import Batcher, Parameters
from .runner import Code, Runner, RunnerError, build

WARM_UP = "assets.extra/tf_serving_warmup_requests"
HTTP_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
}
GRPC_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class Version:
    """One SavedModel, loaded and warm.

    Raises:
        RunnerError: it can't be loaded, or one of its warm-up requests fails.
    """

    def __init__(self, name: str, folder: pathlib.Path, program, batching: Parameters | None):
        self.name, self.number, self.users = name, int(folder.name), 0
        self.runner = Runner(program, folder)
        self.run = self.runner.run
        try:
            self._warm_up(folder / WARM_UP)  # Not in batches, whose timeout each would wait for.
        except RunnerError:
            self.runner.close()
            raise
        if batching:
            self.run = Batcher(self.runner.run, batching).run

    def _warm_up(self, file: pathlib.Path) -> None:
        if file.exists():
            for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
                log = prediction_log_pb2.PredictionLog.FromString(record)
                self.predict(log.predict_log.request)

    def predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        """Answers a gRPC request to this version."""
        signature = request.model_spec.signature_name or "serving_default"
        inputs = {}
        for name, value in request.inputs.items():
            try:
                inputs[name] = np.asarray(tf.make_ndarray(value))
            except (TypeError, ValueError) as error:
                message = f"tensor parsing error: {name}"
                raise RunnerError(Code.INVALID_ARGUMENT, message) from error
        outputs = self.run(signature, inputs)
        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.signature_name = self.name, signature
        response.model_spec.version.value = self.number
        for name in request.output_filter or outputs:
            if name not in outputs:
                message = f"output tensor alias not found in signature: {name}"
                raise RunnerError(Code.INVALID_ARGUMENT, message)
            dtype = tf.as_dtype(outputs[name].dtype)
            value = tf.make_tensor_proto(outputs[name], dtype, outputs[name].shape)
            response.outputs[name].CopyFrom(value)
        return response


class Model:
    """The highest version in a folder, looked for again and again."""

    def __init__(self, name, folder, program, batching: Parameters | None = None, poll_seconds=1.0):
        self.name, self.folder = name, pathlib.Path(folder)
        self._program, self._batching = program, batching
        self._version: Version | None = None
        self.failed: set[int] = set()
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._update()
        self._poller = threading.Thread(target=self._poll, args=[poll_seconds])
        self._poller.start()

    @contextlib.contextmanager
    def version(self, name: str, number: int | None = None):
        """Lends the version that serves; it isn't closed meanwhile."""
        with self._changed:
            version = self._version
            if name != self.name or version is None or number not in (None, version.number):
                wanted = f"Latest({name})" if number is None else f"Specific({name}, {number})"
                raise RunnerError(Code.NOT_FOUND, f"Servable not found for request: {wanted}")
            version.users += 1
        try:
            yield version
        finally:
            with self._changed:
                version.users -= 1
                self._changed.notify_all()

    def close(self) -> None:
        self._closing.set()
        self._poller.join()
        self._replace(None)

    def _poll(self, seconds: float) -> None:
        while not self._closing.wait(seconds):
            self._update()

    def _update(self) -> None:
        folders = {int(path.name): path for path in self.folder.glob("[0-9]*")
                   if path.name.isdecimal() and path.is_dir()}  # fmt: skip
        newest = max(folders.keys() - self.failed, default=0)
        if newest <= (self._version.number if self._version else 0):
            return
        try:
            self._replace(Version(self.name, folders[newest], self._program, self._batching))
        except RunnerError as error:
            self.failed.add(newest)
            print(f"version {newest} can't be served: {error}", file=sys.stderr)

    def _replace(self, version: Version | None) -> None:
        with self._changed:
            old, self._version = self._version, version
            self._changed.wait_for(lambda: old is None or old.users == 0)
        if old:
            old.runner.close()


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """gRPC: what clients call at port 8500."""

    def __init__(self, model: Model):
        self._model = model

    def Predict(self, request, context):
        try:
            with self._asked(request.model_spec) as version:
                return version.predict(request)
        except RunnerError as error:
            context.abort(GRPC_STATUS[error.code], error.message)

    def GetModelMetadata(self, request, context):
        try:
            if list(request.metadata_field) != ["signature_def"]:
                message = f"Metadata field {list(request.metadata_field)} is not supported"
                raise RunnerError(Code.INVALID_ARGUMENT, message)
            with self._asked(request.model_spec) as version:
                response = get_model_metadata_pb2.GetModelMetadataResponse()
                response.model_spec.name = version.name
                response.model_spec.version.value = version.number
                response.metadata["signature_def"].Pack(signature_map(version))
                return response
        except RunnerError as error:
            context.abort(GRPC_STATUS[error.code], error.message)

    def _asked(self, spec):
        number = spec.version.value if spec.HasField("version") else None
        return self._model.version(spec.name, number)


def signature_map(version: Version) -> get_model_metadata_pb2.SignatureDefMap:
    return get_model_metadata_pb2.SignatureDefMap(signature_def=version.runner.signatures)


class RestHandler(http.server.BaseHTTPRequestHandler):
    """REST: what clients call at port 8501."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # An answer's head and body are two writes.
    model: Model

    def do_GET(self) -> None:
        self._reply(r"/v1/models/([^/:]+)(?:/versions/(\d+))?(?:/(metadata))?", self._describe)

    def do_POST(self) -> None:
        self._reply(r"/v1/models/([^/:]+)(?:/versions/(\d+))?:(predict)", self._predict)

    def log_message(self, *_) -> None:
        """Says nothing."""

    def _reply(self, pattern: str, answer) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            match = re.fullmatch(pattern, self.path)
            if match is None:
                message = f"Malformed request: {self.command} {self.path}"
                raise RunnerError(Code.INVALID_ARGUMENT, message)
            name, number, what = match.groups()
            with self.model.version(name, number and int(number)) as version:
                status, content = 200, answer(version, what, body)
        except RunnerError as error:
            status = HTTP_STATUS.get(error.code, 500)
            content = rest_json.dump({"error": error.message})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _predict(self, version: Version, _: str, body: bytes) -> bytes:
        signature, inputs, by_rows = rest_json.read_request(body, version.runner.signatures)
        return rest_json.write_reply(version.run(signature, inputs), by_rows)

    def _describe(self, version: Version, what: str | None, _: bytes) -> bytes:
        number = str(version.number)
        if what is None:
            ok = {"error_code": "OK", "error_message": ""}
            state = {"version": number, "state": "AVAILABLE", "status": ok}
            return json.dumps({"model_version_status": [state]}).encode()
        spec = {"name": version.name, "signature_name": "", "version": number}
        signatures = json_format.MessageToDict(
            signature_map(version),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return json.dumps({"model_spec": spec, "metadata": {"signature_def": signatures}}).encode()


class RestServer(http.server.ThreadingHTTPServer):
    """A thread for each connection; many may come at once."""

    request_queue_size = 128


class Server:
    """Both ports of a model, each in threads of its own."""

    def __init__(self, model: Model, port: int = 0, rest_port: int = 0):
        self.model = model
        workers = concurrent.futures.ThreadPoolExecutor(64)
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._grpc = grpc.server(workers, options=unlimited)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(model), self._grpc
        )
        self.port = self._grpc.add_insecure_port(f"127.0.0.1:{port}")
        self._grpc.start()
        handler = type("Handler", (RestHandler,), {"model": model})
        self._rest = RestServer(("127.0.0.1", rest_port), handler)
        self.rest_port = self._rest.server_port
        self._rest_thread = threading.Thread(target=self._rest.serve_forever)
        self._rest_thread.start()

    def close(self) -> None:
        self._grpc.stop(grace=5).wait()
        self._rest.shutdown()
        self._rest_thread.join()
        self._rest.server_close()
        self.model.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--model_base_path", required=True)
    parser.add_argument("--port", type=int, default=8500)
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--enable_batching", action="store_true")
    parser.add_argument("--batching_parameters_file")
    parser.add_argument("--file_system_poll_wait_seconds", type=float, default=1.0)
    args = parser.parse_args(arguments)
    # An exception could land in a callback that swallows it.
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    batching = None
    if args.enable_batching:
        file = args.batching_parameters_file
        batching = Parameters.read(file) if file else Parameters()
    with tempfile.TemporaryDirectory() as folder:
        model = Model(args.model_name, args.model_base_path, build(folder), batching,
                      args.file_system_poll_wait_seconds)  # fmt: skip
        server = Server(model, args.port, args.rest_api_port)
        print(f"gRPC at 127.0.0.1:{server.port}, REST at 127.0.0.1:{server.rest_port}", flush=True)
        try:
            stop.wait()
        finally:
            server.close()


if __name__ == "__main__":
    main()
