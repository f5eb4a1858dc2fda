"""`signature.md`: what an export can be asked, and how, for those who serve it."""

from __future__ import annotations

import json
import shlex
import urllib.parse
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# A field -> its dimensions, where they're free, and what it is.
FIELDS = {
    "token_ids": ("BT", "ids of the tokens, that of [CLS] first"),
    "segment_ids": ("BT", "0 at the first text's tokens, 1 at the second's"),
    "padding_mask": ("BT", "1 at tokens, 0 at padding"),
    "length": ("B", "how many tokens the row has; the rest is padding"),
    "text": ("B", "the text, UTF-8"),
    "pair": ("B", "the second text, UTF-8"),
    "question": ("B", "the question, UTF-8"),
    "context": ("B", "the text in which the answer is looked for, UTF-8"),
    "words": (
        "BW",
        'the words of the text, UTF-8, padded with "" (by the client: a server that pads '
        "fills with the first word)",
    ),
    "label": ("B", "name of the likeliest class"),
    "labels": ("BK", 'names of the classes that apply, padded with ""'),
    "score": ("B", "the predicted value"),
    "scores": ("BC", "probabilities of all classes, in the order of their training"),
    "count": ("B", "how many entries of the row are no padding"),
    "tags": ("BW", 'the tag of each word, padded with ""'),
    "starts": ("BW", "code point at which each word starts, padded with 0"),
    "ends": ("BW", "code point after each word, padded with 0"),
    "tokens": ("BM5", 'the likeliest tokens for each [MASK], best first, padded with ""'),
    "answer": ("B", 'the answer as it stands in the context; "" if there is none'),
    "start": ("B", "code point of the context at which the answer starts"),
    "end": ("B", "code point of the context after the answer"),
    "embedding": ("BD", "vector of the text"),
}
# A field beside another one -> the same, where that differs.
FIELDS_BESIDE = {
    ("score", "label"): ("B", "probability of `label`"),
    ("score", "start"): ("B", "probability of the answer among all spans"),
    ("scores", "tokens"): ("BM5", "probabilities of `tokens`, padded with 0"),
    ("start", "token_ids"): ("B", "position of the answer's first token"),
    ("end", "token_ids"): ("B", "position of the answer's last token"),
    ("tags", "token_ids"): ("BT", 'the tag of each token, "" at padding, [CLS] and [SEP]'),
}


def signature_page(
    name: str,
    signatures: Mapping[str, tuple[Mapping[str, tf.TensorSpec], Mapping[str, tf.TensorSpec]]],
    examples: Mapping[str, Mapping[str, Any]],
    limits: Mapping[str, int],
) -> str:
    """The page in Markdown, with calls that can be copied and run.

    Args:
        name: The name under which the model is served.
        signatures: The specs of the inputs and those of the outputs, by name.
        examples: For each signature its inputs, as arrays or nested lists.
        limits: `bytes` of a text and `tokens` of a row, both refused beyond.
    """
    parts = [HEAD.format(name=name, path=shlex.quote(name), url=_url(name))]
    for signature, (inputs, outputs) in signatures.items():
        values = {key: _plain(value) for key, value in examples[signature].items()}
        body = {"signature_name": signature, "inputs": values}
        parts += [
            f"## `{signature}`\n",
            _table(inputs, outputs),
            "```bash",
            f"curl --data {shlex.quote(_json(body))} {_url(name)}:predict",
            "```\n",
            "```python",
            _python_call(name, signature, inputs, values),
            "```\n",
        ]
    parts.append(TAIL.format(url=_url(name), **limits))
    return "\n".join(parts)


HEAD = """\
# {name}

A SavedModel for TensorFlow Serving; it needs core TensorFlow ops alone. The folder that holds
`1/` is the model's:

```bash
tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={path} \\
    --model_base_path="$PWD"/{path}
```

B is the number of rows in a request, T that of the tokens of a row (the longest one's, with
padding), W of words, K of labels, M of masks. REST answers `{{"outputs": ...}}`: the outputs by
name, or the output itself where there's but one. The Python calls need `tensorflow` and
`tensorflow-serving-api`.
"""

TAIL = """\
## Limits

- A text has at most {bytes:,} bytes of UTF-8.
- A row of ids has at most {tokens:,} tokens. A text that has more is cut or read in windows, as
  it was in training.
- A request beyond these is refused (INVALID_ARGUMENT; 400 in REST) with a sentence that says why.

## Versions

`1/` is a version of the model. A new one is the folder `2/` beside it, made under another name
and then renamed: TensorFlow Serving finds it, warms it up and only then drops `1/`, without a
pause. The calls above ask the newest, and this address one of them, while it's loaded:
{url}/versions/1:predict

To go back, take `2/` away.
"""


def _table(inputs: Mapping[str, tf.TensorSpec], outputs: Mapping[str, tf.TensorSpec]) -> str:
    lines = ["| | name | dtype | shape | meaning |", "|---|---|---|---|---|"]
    for side, specs in (("input", inputs), ("output", outputs)):
        for key in sorted(specs, key=list(FIELDS).index):  # TensorFlow keeps no order
            letters, meaning = _field(key, {*inputs, *outputs})
            sizes = zip(specs[key].shape.as_list(), letters, strict=True)
            shape = " x ".join(letter if size is None else str(size) for size, letter in sizes)
            lines.append(f"| {side} | `{key}` | {specs[key].dtype.name} | {shape} | {meaning} |")
    return "\n".join(lines) + "\n"


def _field(name: str, beside: Container[str]) -> tuple[str, str]:
    for (field, other), words in FIELDS_BESIDE.items():
        if field == name and other in beside:
            return words
    return FIELDS[name]


def _python_call(
    name: str, signature: str, inputs: Mapping[str, tf.TensorSpec], values: Mapping[str, Any]
) -> str:
    tensors = [
        f'request.inputs["{key}"].CopyFrom('
        f"tf.make_tensor_proto({_json(value)}, tf.{inputs[key].dtype.name}))"
        for key, value in values.items()
    ]
    return "\n".join(
        [
            "import grpc, tensorflow as tf",
            "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
            "",
            'channel = grpc.insecure_channel("localhost:8500")',
            "service = prediction_service_pb2_grpc.PredictionServiceStub(channel)",
            "request = predict_pb2.PredictRequest()",
            f"request.model_spec.name = {_json(name)}",
            f"request.model_spec.signature_name = {_json(signature)}",
            *tensors,
            "outputs = service.Predict(request, timeout=10).outputs",
            "print({key: tf.make_ndarray(value) for key, value in outputs.items()})",
        ]
    )


def _plain(value: Any) -> Any:
    """An array or nested list as nested lists of numbers and str."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    """JSON, which is also Python where there's no true, false or null."""
    return json.dumps(value, ensure_ascii=False)


def _url(name: str) -> str:
    return f"http://localhost:8501/v1/models/{urllib.parse.quote(name)}"
