r"""Text in, vector out, beside what else serves BERT on a CPU: throughput and latency.

    python benchmarks/serving.py --weights MODEL --texts dev.tsv --peers-python VENV/bin/python

Each side is a process of its own, in turn, on the same sentences and the same weights: our
SavedModel (its text signature) in float32, bfloat16 and int8; our LiteRT file in float32 and int8;
ONNX Runtime with Hugging Face's tokenizers, Hugging Face's torch model with the same tokenizers,
and KerasHub's model by `predict`. Tokenization is included; batches are padded to their longest
sentence, KerasHub's to 128 tokens, as its preprocessor does it, and LiteRT's rows, read one by one,
to 128, as its file has a fixed shape. The table gives the medians over all rounds and the size of
the files; all vectors are compared with ours in float32, and those in float32 must be the same.

MODEL is the folder of a Hugging Face checkpoint, TEXTS a TSV whose second column is text. The
peers' Python has torch, transformers, tokenizers, onnx and onnxruntime.

    python benchmarks/serving.py --classifier RUN/preset --dev-file dev.tsv

gives the accuracy of a classifier in each of our forms instead; the TSV's columns are label and
text.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH, LONGEST = 32, 128
# A side of ours -> its SavedModel's precision, or what its LiteRT file is quantized to.
SAVED_MODELS = {"ours": "float32", "ours_bfloat16": "bfloat16", "ours_int8": "int8"}
LITERT = {"litert": None, "litert_int8": "int8"}
FORMS = (*SAVED_MODELS, *LITERT)
SIDES = (*FORMS, "onnxruntime", "torch", "keras_hub")
INEXACT = ("ours_bfloat16", "ours_int8", "litert_int8")
Embed = Callable[[list[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare serving with peers."""

    weights: str = ""
    """Folder of a Hugging Face checkpoint."""
    texts: str = ""
    """TSV with a header, whose second column is text."""
    peers_python: str = sys.executable
    """The Python that has the peers."""
    rounds: int = 3
    """Processes of each side."""
    batches: int = 30
    """Timed batches of 32 of a process, and ten times as many single sentences."""
    sides: tuple[str, ...] = SIDES
    """Who takes part."""
    classifier: str = ""
    """Preset of a classifier, whose accuracy in each form is wanted."""
    dev_file: str = ""
    """Its TSV with a header: label and text."""


def main(args: Args) -> dict[str, Any]:
    """Prints the table, and gives it back."""
    if args.classifier:
        return {form: accuracy(form, args) for form in FORMS}
    lines = pathlib.Path(args.texts).read_text(encoding="utf-8").split("\n")[1:]
    texts = [line.split("\t")[1] for line in lines if line]
    if len(texts) < 10 * BATCH:
        sys.exit(f"{args.texts} must hold at least {10 * BATCH} texts. Received: {len(texts)}.")
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in args.sides}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        for number in range(args.rounds):
            first = number % len(args.sides)  # none is always first
            for side in args.sides[first:] + args.sides[:first]:
                python = args.peers_python if side in PEERS else sys.executable
                command = [python, __file__, side, args.weights, folder, str(args.batches)]
                environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
                output = subprocess.run(  # noqa: S603 - this file itself
                    command, env=environment, stdout=subprocess.PIPE, text=True, check=True
                ).stdout
                found[side].append(json.loads(output.strip().split("\n")[-1]))
        vectors = {side: np.load(work / f"{side}.npy") for side in args.sides}
    table = {}
    for side, runs in found.items():
        table[side] = {
            "megabytes": runs[0]["megabytes"],
            "texts_per_second": statistics.median(x["texts_per_second"] for x in runs),
            "milliseconds": statistics.median(x["milliseconds"] for x in runs),
            "max_difference": float(np.abs(vectors[side] - vectors[args.sides[0]]).max()),
        }
        print(side, json.dumps(table[side]), flush=True)
        if side not in INEXACT and table[side]["max_difference"] > 1e-4:
            sys.exit(f"{side} computes something else: {table[side]['max_difference']}")
    print(json.dumps(table))
    return table


def measured(side: str, weights: str, folder: str, batches: int) -> None:
    """One process of one side: prints its JSON line, leaves its vectors."""
    work = pathlib.Path(folder)
    texts = json.loads((work / "texts.json").read_text(encoding="utf-8"))
    if side in FORMS:
        path, embed = ours(side, weights, work)
    else:
        path, embed = OTHERS[side](weights, work)
    several = [texts[i : i + BATCH] for i in range(0, BATCH * (len(texts) // BATCH), BATCH)]
    for batch in several[:10]:
        embed(batch)
    for text in texts[:50]:
        embed([text])
    batched = [seconds(embed, several[i % len(several)]) for i in range(batches)]
    single = [seconds(embed, [texts[i % len(texts)]]) for i in range(10 * batches)]
    np.save(work / f"{side}.npy", np.concatenate([embed(batch) for batch in several[:8]]))
    files = [path] if path.is_file() else [x for x in path.rglob("*") if x.is_file()]
    print(json.dumps({
        "megabytes": round(sum(x.stat().st_size for x in files) / 1e6, 1),
        "texts_per_second": BATCH / statistics.median(batched),
        "milliseconds": 1e3 * statistics.median(single),
    }))  # fmt: skip


def seconds(embed: Embed, texts: list[str]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    embed(texts)
    return time.perf_counter() - began


def ours(side: str, weights: str, work: pathlib.Path) -> tuple[pathlib.Path, Embed]:
    """One of our forms."""
    path = work / (f"{side}.tflite" if side in LITERT else side)
    if not path.exists():
        import keras_bert

        preset = keras_bert.load(weights)
        preset.settings["max_sequence_length"] = LONGEST
        write(side, preset, path)
    if side in SAVED_MODELS:
        import tensorflow as tf

        signature = tf.saved_model.load(str(path / "1")).signatures["text"]
        return path, lambda texts: signature(text=tf.constant(texts))["embedding"].numpy()
    from keras_bert import WordPiece

    tokenizer = WordPiece(pathlib.Path(weights, "vocab.txt"))
    run = litert(path)
    return path, lambda texts: np.stack(
        [run(tokenizer.encode(text, max_length=LONGEST))["embedding"] for text in texts]
    )


def write(form: str, preset: Any, path: pathlib.Path) -> None:
    """Writes a preset in one of our forms."""
    from keras_bert import export

    if form in SAVED_MODELS:
        export.export_saved_model(preset, path, SAVED_MODELS[form])
    else:
        export.export_litert(preset, path, LITERT[form])


def litert(path: pathlib.Path) -> Callable[[Any], dict[str, np.ndarray]]:
    """A LiteRT file with as many threads as cores, as a function of one row's encoding."""
    import tensorflow as tf  # warns that its interpreter will move to ai-edge-litert

    interpreter = tf.lite.Interpreter(str(path), num_threads=os.cpu_count())
    runner = interpreter.get_signature_runner()
    length = runner.get_input_details()["token_ids"]["shape"][1]

    def run(encoding: Any) -> dict[str, np.ndarray]:
        row = {name: np.zeros((1, length), np.int32) for name in runner.get_input_details()}
        size = len(encoding.token_ids)
        row["token_ids"][0, :size] = encoding.token_ids
        row["segment_ids"][0, :size] = encoding.segment_ids
        row["padding_mask"][0, :size] = 1
        return {name: x[0] for name, x in runner(**row).items()}

    return run


def accuracy(form: str, args: Args) -> float:
    """The accuracy of a classifier in one of our forms."""
    import keras_bert

    lines = pathlib.Path(args.dev_file).read_text(encoding="utf-8").split("\n")[1:]
    labels, texts = zip(*(line.split("\t")[:2] for line in lines if line), strict=True)
    preset = keras_bert.load(args.classifier)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "form.tflite" if form in LITERT else "form")
        write(form, preset, path)
        if form in SAVED_MODELS:
            found = [each.label for each in keras_bert.load_saved_model(path)(list(texts))]
        else:
            run, longest = litert(path), preset.max_sequence_length
            rows = (preset.tokenizer.encode(text, max_length=longest) for text in texts)
            found = [preset.labels[run(row)["label"].argmax()] for row in rows]
    score = float(np.mean([one == other for one, other in zip(found, labels, strict=True)]))
    print(form, score, len(texts), flush=True)
    return score


def onnxruntime(weights: str, work: pathlib.Path) -> tuple[pathlib.Path, Embed]:
    """The encoder's ONNX form, as torch exports it."""
    import onnxruntime as ort

    path = work / "model.onnx"
    if not path.exists():
        import torch
        import transformers

        class Encoder(torch.nn.Module):
            """Tensors in and out, as torch traces them."""

            def __init__(self) -> None:
                super().__init__()
                self.model = transformers.BertModel.from_pretrained(
                    weights, attn_implementation="eager"
                )

            def forward(self, ids: Any, mask: Any, types: Any) -> Any:
                return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]

        names = ["input_ids", "attention_mask", "token_type_ids"]
        example = tuple(torch.ones((2, 8), dtype=torch.long) for _ in names)
        axes = {name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]}
        torch.onnx.export(
            Encoder().eval(),
            example,
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            dynamo=False,
        )
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens = tokenized(weights)

    def embed(texts: list[str]) -> np.ndarray:
        inputs = tokens(texts)
        return pooled(session.run(None, inputs)[0], inputs["attention_mask"])

    return path, embed


def torch_model(weights: str, work: pathlib.Path) -> tuple[pathlib.Path, Embed]:
    """Hugging Face's model."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(weights).eval()
    tokens = tokenized(weights)

    def embed(texts: list[str]) -> np.ndarray:
        inputs = tokens(texts)
        with torch.inference_mode():
            states = model(**{key: torch.from_numpy(x) for key, x in inputs.items()})[0].numpy()
        return pooled(states, inputs["attention_mask"])

    return pathlib.Path(weights, "model.safetensors"), embed


def tokenized(weights: str) -> Callable[[list[str]], dict[str, np.ndarray]]:
    """Hugging Face's tokenizers, without the Python around it."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(weights).backend_tokenizer
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()

    def tokens(texts: list[str]) -> dict[str, np.ndarray]:
        encodings = tokenizer.encode_batch(texts)
        names = {
            "input_ids": "ids",
            "attention_mask": "attention_mask",
            "token_type_ids": "type_ids",
        }
        return {
            name: np.array([getattr(each, field) for each in encodings])
            for name, field in names.items()
        }

    return tokens


def keras_hub(weights: str, work: pathlib.Path) -> tuple[pathlib.Path, Embed]:
    """KerasHub's encoder, on our weights in its own format."""
    import keras
    import keras_hub as hub

    folder = work / "keras_hub"
    if not folder.exists():
        import keras_bert

        keras_bert.save(keras_bert.load(weights), folder, format="keras_hub")
    backbone = hub.models.BertBackbone.from_preset(str(folder))
    for layer in backbone.transformer_layers:  # its own is the tanh form
        layer._feedforward_intermediate_dense.activation = keras.activations.gelu
    tokenizer = hub.models.BertTokenizer.from_preset(str(folder))
    preprocess = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=LONGEST)

    def embed(texts: list[str]) -> np.ndarray:
        inputs = preprocess(texts)
        states = backbone.predict(inputs, batch_size=len(texts), verbose=0)["sequence_output"]
        return pooled(states, np.array(inputs["padding_mask"]))

    return folder, embed


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over the tokens, of length 1."""
    mask = mask.astype(states.dtype)[:, :, None]
    vectors = (states * mask).sum(axis=1) / mask.sum(axis=1)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


PEERS = ("onnxruntime", "torch")  # of a Python of their own
OTHERS = {"onnxruntime": onnxruntime, "torch": torch_model, "keras_hub": keras_hub}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        measured(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        import tyro

        main(tyro.cli(Args))
