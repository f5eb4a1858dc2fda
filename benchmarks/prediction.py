r"""Sentences a second of embedding a whole file of texts, beside what else does it on a CPU.

    python benchmarks/prediction.py --weights MODEL --texts train.tsv dev.tsv \
        --peers-python VENV/bin/python

Texts in, one vector each out, tokenization included, as one call over all of them. Each side is a
process of its own, in turn, on the same texts and weights; models are loaded, and run on a few
hundred of the texts, before the clock starts:

- `ours`: `keras_bert.embed(preset, texts)`;
- `ours_export`: the same through `keras_bert.load_saved_model`;
- `torch` and `onnxruntime`: Hugging Face's tokenizers over all texts at once, then its model, or
  that one's ONNX form, over the texts sorted by their number of tokens, in batches of 32 that are
  padded to their longest. (Sorted by characters, as Sentence-BERT's `encode` has it, 78 % of the
  tokens of 10,000 sentences are real; by tokens 99 %.)

Texts are cut at 128 tokens. All vectors are compared with the first side's. Operations are those of
the matrix products on the texts' own tokens, a multiplication and an addition being two; beside
them stands what TensorFlow's or torch's product of large matrices reaches in the same process.

MODEL is the folder of a Hugging Face checkpoint, a text is the second column of a TSV with a
header. The peers' Python has torch, transformers, tokenizers, onnx and onnxruntime.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import serving
from sides import compared, in_turn, matrix_rate, show

SIDES = ("ours", "ours_export", "torch", "onnxruntime")
WARM_UP = 320  # texts


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare the prediction of a whole file with peers."""

    weights: str
    """Folder of a Hugging Face checkpoint."""
    texts: tuple[str, ...]
    """TSVs with a header, whose second column is text; a file may be named twice."""
    limit: int = 10_000
    """Texts, the first of the files."""
    peers_python: str = sys.executable
    """The Python that has the peers."""
    rounds: int = 3
    """Processes of each side."""
    sides: tuple[str, ...] = SIDES
    """Who takes part."""


def main(args: Args) -> dict[str, Any]:
    """Prints a line for each number of the table, and gives the table back."""
    lines = [
        line
        for path in args.texts
        for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")[1:]
        if line
    ]
    texts = [line.split("\t")[1] for line in lines[: args.limit]]
    if len(texts) < args.limit:
        sys.exit(f"--limit must be at most the files' texts, {len(texts)}. Received: {args.limit}.")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        settings = {"weights": args.weights, "folder": folder}
        runs = in_turn(__file__, args.sides, args.rounds, args.peers_python, settings)
        vectors = [np.load(work / f"{side}.npy") for side in args.sides]
    table = compared(runs, "texts_per_second")
    show(table)
    table["max_difference"] = max(float(np.abs(each - vectors[0]).max()) for each in vectors)
    print(json.dumps(table))
    if not table["max_difference"] <= 1e-4:
        sys.exit(f"A side computes something else: {table['max_difference']}.")
    return table


def measured(side: str, settings: dict[str, Any]) -> dict[str, float]:
    """One process of one side; it leaves its vectors."""
    weights, work = settings["weights"], pathlib.Path(settings["folder"])
    texts = json.loads((work / "texts.json").read_text(encoding="utf-8"))
    load = {"ours": ours, "ours_export": ours_export, "torch": torch_model,
            "onnxruntime": onnxruntime}[side]  # fmt: skip
    embed = load(weights, work)
    embed(texts[:: -(-len(texts) // WARM_UP)])
    began = time.perf_counter()
    vectors = embed(texts)
    seconds = time.perf_counter() - began
    np.save(work / f"{side}.npy", vectors)
    library = "tensorflow" if side.startswith("ours") else "torch"
    return {
        "texts_per_second": round(len(texts) / seconds, 1),
        "gflops": round(model_flops(weights, lengths(side, weights, texts)) / seconds / 1e9, 1),
        "matrix_gflops": round(matrix_rate(library, "float32"), 1),
    }


def ours(weights: str, work: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """`keras_bert.embed`."""
    import keras_bert

    preset = keras_bert.load(weights)
    preset.settings["max_sequence_length"] = serving.LONGEST
    return lambda texts: keras_bert.embed(preset, texts)


def ours_export(weights: str, work: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """The export, called with all texts."""
    import keras_bert

    if not (work / "export").exists():
        preset = keras_bert.load(weights)
        preset.settings["max_sequence_length"] = serving.LONGEST
        keras_bert.export_saved_model(preset, work / "export")
    return keras_bert.load_saved_model(work / "export")


def torch_model(weights: str, work: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """Hugging Face's model."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(weights).eval()

    def states(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            return model(**{key: torch.from_numpy(x) for key, x in inputs.items()})[0].numpy()

    return sorted_by_length(states, weights)


def onnxruntime(weights: str, work: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """The encoder's ONNX form, as `serving.py` makes it."""
    import onnxruntime as ort

    if not (work / "model.onnx").exists():
        serving.onnxruntime(weights, work)
    session = ort.InferenceSession(str(work / "model.onnx"), providers=["CPUExecutionProvider"])
    return sorted_by_length(lambda inputs: session.run(None, inputs)[0], weights)


def sorted_by_length(
    states: Callable[[dict[str, np.ndarray]], np.ndarray], weights: str
) -> Callable[[list[str]], np.ndarray]:
    """Texts to vectors, in batches of texts that have as many tokens."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(weights).backend_tokenizer
    tokenizer.enable_truncation(serving.LONGEST)
    tokenizer.no_padding()

    def embed(texts: list[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        vectors: Any = [None] * len(rows)
        for first in range(0, len(rows), serving.BATCH):
            chosen = order[first : first + serving.BATCH]
            ids = np.zeros((len(chosen), len(rows[chosen[0]])), np.int64)
            mask = np.zeros_like(ids)
            for row, i in enumerate(chosen):
                ids[row, : len(rows[i])] = rows[i]
                mask[row, : len(rows[i])] = 1
            types = np.zeros_like(ids)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            for i, vector in zip(chosen, serving.pooled(states(inputs), mask), strict=True):
                vectors[i] = vector
        return np.array(vectors)

    return embed


def lengths(side: str, weights: str, texts: list[str]) -> np.ndarray:
    """Tokens of each text, as the side's own tokenizer counts them."""
    if side.startswith("ours"):
        import keras_bert

        ids = keras_bert.load(weights).tokenizer(texts)
        return np.array([min(len(each) + 2, serving.LONGEST) for each in ids])
    return serving.tokenized(weights)(texts)["attention_mask"].sum(axis=1)


def model_flops(weights: str, lengths: np.ndarray) -> float:
    """Operations of an encoder on texts of these lengths."""
    config = json.loads((pathlib.Path(weights) / "config.json").read_text(encoding="utf-8"))
    width, intermediate = config["hidden_size"], config["intermediate_size"]
    kernels = lengths.sum() * (4 * width**2 + 2 * width * intermediate)
    attention = 2 * (lengths.astype(np.int64) ** 2).sum() * width  # scores, and the mix of values
    return 2.0 * config["num_hidden_layers"] * float(kernels + attention)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        print(json.dumps(measured(sys.argv[1], json.loads(sys.argv[3]))))
    else:
        import tyro

        main(tyro.cli(Args))
