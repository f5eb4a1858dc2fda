r"""Real tokens a second of pretraining on real text, beside KerasHub's and Hugging Face's.

    python benchmarks/pretraining_rate.py --input wikitext.txt --document-break heading \
        --vocabulary vocab.txt --max-sequence-length 128 --rows 8 --peers-python VENV/bin/python

`recipes/create_pretraining_data.py` makes examples of the text once. All sides train the same size
of encoder on them from random weights, with batches of as many rows, in processes of their own, in
turn:

- `ours`: `keras_bert.data.pretraining` with packed rows, as `recipes/pretrain.py` has it: reading,
  masking and packing are part of the time;
- `keras_hub`: `BertMaskedLM` on TensorFlow by `fit`, without XLA, on examples padded to the full
  length. It has no next-sentence head, so its step is less work;
- `torch`: Hugging Face's `BertForPreTraining` in a plain loop, on batches padded to their longest
  example.

The peers' examples are read and masked beforehand, which costs them no time. The rate is that of
the timed batches' tokens, padding included, times `fill`: the share that is real of the tokens of
the first 200 batches, as a few batches would say it by chance. Operations are counted over all
tokens of the timed batches, padding too, as in `training_step.py`.

The peers' Python has torch and transformers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Literal

import numpy as np
from sides import compared, in_turn, matrix_rate, show
from training_step import (
    LEFT_OUT,
    Case,
    compile_ours,
    ends_of_fit,
    keras_hub_model,
    labels_everywhere,
    model_flops,
    our_encoder,
    torch_inputs,
    torch_step,
)

RECIPE = pathlib.Path(__file__).resolve().parents[1] / "recipes" / "create_pretraining_data.py"
SIDES = ("ours", "keras_hub", "torch")
EXAMPLES = "examples"  # the process that writes the peers' batches
BATCHES = 200  # over which fill is taken


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare pretraining on real text with peers."""

    input: tuple[str, ...]
    """Texts, as `create_pretraining_data.py` takes them."""
    vocabulary: str
    """Their vocab.txt."""
    lowercase: bool = True
    """Whether to lower-case the text: as the vocabulary was made."""
    document_break: tuple[Literal["blank", "heading", "file"], ...] = ("blank",)
    """What ends a document, as `create_pretraining_data.py` takes it."""
    max_sequence_length: int = 128
    """Tokens of the longest example, and of a packed row."""
    rows: int = 8
    """Rows of a batch."""
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """The encoder's size."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the matrix products are computed in; weights stay in float32."""
    steps: int = 10
    """Timed steps of a process, after two that aren't."""
    rounds: int = 3
    """Processes of each side."""
    peers_python: str = sys.executable
    """The Python that has torch and transformers."""
    sides: tuple[str, ...] = SIDES
    """Who takes part."""


def main(args: Args) -> dict[str, Any]:
    """Prints a line for each number of the table, and gives the table back."""
    if not 1 <= args.steps <= BATCHES - LEFT_OUT:
        sys.exit(f"--steps must be from 1 to {BATCHES - LEFT_OUT}. Received: {args.steps}.")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(RECIPE), "--input", *args.input]
        command += ["--document-break", *args.document_break]
        command += ["--vocabulary", args.vocabulary, "--output-dir", f"{folder}/records"]
        command += ["--lowercase" if args.lowercase else "--no-lowercase"]
        command += ["--max-sequence-length", str(args.max_sequence_length)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our recipe
        settings = {"folder": folder, "rows": args.rows, "dtype": args.dtype, "steps": args.steps}
        [sizes] = in_turn(__file__, [EXAMPLES], 1, sys.executable, settings | {"size": args.size})[
            EXAMPLES
        ]
        runs = in_turn(__file__, args.sides, args.rounds, args.peers_python, settings | sizes)
    table = compared(runs, "real_tokens_per_second")
    show(table)
    print(json.dumps(table))
    return table


def write_examples(settings: dict[str, Any]) -> dict[str, int]:
    """Leaves the first batches of unpacked, masked examples for the peers; gives sizes back."""
    import keras_bert
    from keras_bert.data.records import read_manifest

    folder = pathlib.Path(settings["folder"])
    data = keras_bert.data.pretraining(folder / "records", settings["rows"], seed=0)
    batches = list(data.take(BATCHES).as_numpy_iterator())
    arrays: dict[str, Any] = {
        name: np.stack([{**inputs, **labels}[name] for inputs, labels, _ in batches])
        for name in {**batches[0][0], **batches[0][1]}
    }
    arrays["weights"] = np.stack([weights["masked_lm"] for _, _, weights in batches])
    np.savez(folder / "examples.npz", **arrays)
    manifest = read_manifest(folder / "records")
    config = keras_bert.BertConfig.of_size(settings["size"])
    return {
        "layers": config.num_layers,
        "hidden": config.hidden_dim,
        "vocabulary_size": manifest["tokenizer"]["vocabulary_size"],
        "length": manifest["settings"]["max_sequence_length"],
    }


def measured(side: str, settings: dict[str, Any]) -> dict[str, float]:
    """One process of one side."""
    run = {"ours": ours, "keras_hub": keras_hub, "torch": torch_loop}[side]
    ends, masks = run(settings | {"side": side})
    seconds = ends[-1] - ends[LEFT_OUT - 1]
    fill = sum(map(np.count_nonzero, masks)) / sum(map(np.size, masks))
    timed = masks[LEFT_OUT : len(ends)]
    masked = math.ceil(0.15 * settings["length"])
    cases = [Case(len(mask), mask.shape[1], masked) for mask in timed]
    flops = sum(model_flops(case, settings) for case in cases)
    library = "torch" if side == "torch" else "tensorflow"
    return {
        "real_tokens_per_second": round(fill * sum(map(np.size, timed)) / seconds, 1),
        "fill": round(fill, 4),
        "step_seconds": round(seconds / settings["steps"], 4),
        "gflops": round(flops / seconds / 1e9, 1),
        "matrix_gflops": round(matrix_rate(library, settings["dtype"]), 1),
    }


# When each step ended, and the batches' padding masks, (B, T), 0 at padding.
Ends = tuple[list[float], list[np.ndarray]]


def ours(settings: dict[str, Any]) -> Ends:
    """Packed rows, from the records to the update."""
    import keras_bert

    records = f"{settings['folder']}/records"
    data = keras_bert.data.pretraining(
        records, settings["rows"], seed=0, row_length=settings["length"]
    )
    masks = [inputs["padding_mask"] for inputs, _, _ in data.take(BATCHES).as_numpy_iterator()]
    model = keras_bert.tasks.pretraining(our_encoder(settings), packed=True)
    compile_ours(model)
    return ends_of_fit(model, data.take(LEFT_OUT + settings["steps"])), masks


def keras_hub(settings: dict[str, Any]) -> Ends:
    """Masked tokens alone, padded to the full length."""
    import tensorflow as tf

    examples = dict(np.load(f"{settings['folder']}/examples.npz"))
    model = keras_hub_model(settings, is_masked_lm=True)
    inputs = {name: examples[name] for name in model.input}
    batches = (inputs, examples["masked_lm"], examples["weights"])
    data = tf.data.Dataset.from_tensor_slices(batches)
    ends = ends_of_fit(model, data.take(LEFT_OUT + settings["steps"]))
    return ends, list(examples["padding_mask"])


def torch_loop(settings: dict[str, Any]) -> Ends:
    """Both heads, padded to the longest example of a batch."""
    examples = dict(np.load(f"{settings['folder']}/examples.npz"))
    step = torch_step(settings, is_pretraining=True)
    masks = [mask[:, : mask.sum(axis=1).max()] for mask in examples["padding_mask"]]
    ends = []
    for number, mask in enumerate(masks[: LEFT_OUT + settings["steps"]]):
        batch = {name: x[number] for name, x in examples.items()}
        batch["labels"] = labels_everywhere(batch)
        by_token = ("token_ids", "segment_ids", "padding_mask", "labels")
        cut = {name: batch[name][:, : mask.shape[1]] for name in by_token}
        labels = {"labels": cut["labels"], "next_sentence_label": batch["next_sentence"]}
        step(torch_inputs(cut, labels))
        ends.append(time.monotonic())
    return ends, masks


if __name__ == "__main__":
    if sys.argv[1:2] == [EXAMPLES]:
        print(json.dumps(write_examples(json.loads(sys.argv[3]))))
    elif sys.argv[1:2] and sys.argv[1] in SIDES:
        print(json.dumps(measured(sys.argv[1], json.loads(sys.argv[3]))))
    else:
        import tyro

        main(tyro.cli(Args))
