r"""Seconds of a training step of BERT, beside KerasHub's and Hugging Face's.

    python benchmarks/training_step.py --peers-python VENV/bin/python

BERT-Base with random weights on made-up batches of one shape, no padding, dropout 0.1, AdamW with
weight decay, gradients clipped by their global norm: what fine-tuning and pretraining do in each
update. Every number is taken in a process of its own, the sides in turn, and their order changes
from round to round. The sides:

- `ours`: `keras_bert.tasks`, compiled as our recipes compile it, by `fit`;
- `keras_hub`: `BertTextClassifier` and `BertMaskedLM` on TensorFlow by `fit`, without XLA.
  KerasHub has no next-sentence head, so its pretraining step is less work;
- `keras_hub_xla`: the same with XLA, which Keras leaves out on a CPU unless it's asked for;
- `torch`: Hugging Face's models in a plain loop with the fused `torch.optim.AdamW`. Its pretraining
  head computes the vocabulary's logits at all positions, not at the masked ones alone.

Operations are those of the matrix products that the formulas need, the same number for every side:
a multiplication and an addition are two, the backward pass is twice the forward pass. Beside them
stands what the side's own library reaches on large square matrices in the same dtype, in the same
process. The ratio is ours against the fastest peer; above 1, ours is faster.

The machine must do nothing else: torch's threads wait for each other in every operation, and beside
other work one small step took 0.27 s in one process and 2.2 s in the next.

The peers' Python has torch and transformers.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sides import compared, in_turn, matrix_rate, show

VOCABULARY_SIZE = 30522
LEFT_OUT = 2  # first steps: they trace and compile
SIDES = ("ours", "keras_hub", "keras_hub_xla", "torch")


class Case(NamedTuple):
    """A batch; without masked positions it's fine-tuning with two classes."""

    rows: int
    length: int
    masked: int = 0


CASES = {
    "finetuning": Case(8, 128),
    "pretraining_128": Case(8, 128, 20),
    "pretraining_512": Case(2, 512, 77),
}


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare training steps with peers."""

    peers_python: str = sys.executable
    """The Python that has torch and transformers."""
    rounds: int = 3
    """Processes of each side and case."""
    steps: int = 5
    """Timed steps of a process, after two that aren't."""
    cases: tuple[str, ...] = tuple(CASES)
    """Which batches."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """What the matrix products are computed in; weights stay in float32."""
    sides: tuple[str, ...] = SIDES
    """Who takes part."""
    layers: int = 12
    """Blocks of the encoder."""
    hidden: int = 768
    """Its width, a multiple of 64."""


def main(args: Args) -> dict[str, Any]:
    """Prints a line for each number of the table, and gives the table back."""
    table: dict[str, Any] = {}
    for name in args.cases:
        for dtype in args.dtypes:
            settings = {"case": name, "dtype": dtype, "steps": args.steps}
            settings |= {"layers": args.layers, "hidden": args.hidden}
            settings |= {"vocabulary_size": VOCABULARY_SIZE}
            runs = in_turn(__file__, args.sides, args.rounds, args.peers_python, settings)
            table[f"{name} {dtype}"] = compared(runs, "sequences_per_second")
            print(f"{name} {dtype}")
            show(table[f"{name} {dtype}"])
    print(json.dumps(table))
    return table


def measured(side: str, started: float, settings: dict[str, Any]) -> None:
    """One process of one side: prints its JSON line."""
    case = CASES[settings["case"]]
    batch = made_up(case)
    run = {"ours": ours, "torch": torch_loop}.get(side, keras_hub)
    import_seconds, ends = run(case, batch, settings | {"side": side})
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB, on Linux
    step = statistics.median(np.diff(ends)[LEFT_OUT - 1 :])
    library = "torch" if side == "torch" else "tensorflow"
    print(json.dumps({
        "step_seconds": round(step, 4),
        "sequences_per_second": round(case.rows / step, 3),
        "gflops": round(model_flops(case, settings) / step / 1e9, 1),
        "matrix_gflops": round(matrix_rate(library, settings["dtype"]), 1),
        "import_seconds": round(import_seconds, 2),
        "first_step_seconds": round(ends[0] - started, 2),
        "peak_megabytes": round(megabytes),
    }))  # fmt: skip


def made_up(case: Case) -> dict[str, np.ndarray]:
    """Random tokens, positions and labels by our own names, int32."""
    rng = np.random.default_rng(0)
    rows, length, masked = case
    positions = rng.permuted(np.tile(np.arange(length), (rows, 1)), axis=1)[:, :masked]
    token_ids = rng.integers(1000, VOCABULARY_SIZE, (rows, length))
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.repeat(np.arange(length)[None] >= length // 2, rows, 0),
        "padding_mask": np.ones((rows, length)),
        "mask_positions": np.sort(positions, axis=1),
        "masked_lm": rng.integers(1000, VOCABULARY_SIZE, (rows, masked)),
        "weights": np.ones((rows, masked)),
        "label": rng.integers(0, 2, rows),
    }
    return {name: x.astype(np.int32) for name, x in batch.items()}


def ours(
    case: Case, batch: dict[str, np.ndarray], settings: dict[str, Any]
) -> tuple[float, list[float]]:
    """Seconds of the import, and when each step ended."""
    began = time.monotonic()
    import keras_bert

    import_seconds = time.monotonic() - began
    encoder = our_encoder(settings)
    if case.masked:
        model = keras_bert.tasks.pretraining(encoder)
        labels = {"masked_lm": batch["masked_lm"], "next_sentence": batch["label"]}
    else:
        model = keras_bert.tasks.text_classifier(encoder, 2)
        labels = {"label": batch["label"]}
    compile_ours(model)
    inputs = {name: batch[name] for name in model.input}
    return import_seconds, ends_of_fit(model, repeated((inputs, labels), settings["steps"]))


def our_encoder(settings: dict[str, Any]) -> Any:
    """An encoder of the size and the dtype in the settings."""
    import keras

    import keras_bert

    keras.config.set_dtype_policy(keras_policy(settings["dtype"]))
    hidden = settings["hidden"]
    config = keras_bert.BertConfig(
        vocabulary_size=settings["vocabulary_size"],
        num_layers=settings["layers"],
        num_heads=hidden // 64,
        hidden_dim=hidden,
        intermediate_dim=4 * hidden,
    )
    return keras_bert.bert(config)


def compile_ours(model: Any) -> None:
    """As our recipes do."""
    import keras

    from keras_bert.training import AdamW

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(2e-5), dict.fromkeys(model.output, loss))


def keras_hub(
    case: Case, batch: dict[str, np.ndarray], settings: dict[str, Any]
) -> tuple[float, list[float]]:
    """KerasHub's models, by the same `fit`."""
    began = time.monotonic()
    import keras_hub  # noqa: F401

    import_seconds = time.monotonic() - began
    model = keras_hub_model(settings, case.masked > 0)
    inputs = {name: batch[name] for name in model.input}
    labels = batch["masked_lm" if case.masked else "label"]
    return import_seconds, ends_of_fit(model, repeated((inputs, labels), settings["steps"]))


def keras_hub_model(settings: dict[str, Any], is_masked_lm: bool) -> Any:
    """A compiled model for masked tokens, or for two classes."""
    import keras
    from keras_hub.models import BertBackbone, BertMaskedLM, BertTextClassifier

    keras.config.set_dtype_policy(keras_policy(settings["dtype"]))
    hidden = settings["hidden"]
    backbone = BertBackbone(
        vocabulary_size=settings["vocabulary_size"],
        num_layers=settings["layers"],
        num_heads=hidden // 64,
        hidden_dim=hidden,
        intermediate_dim=4 * hidden,
    )
    model = BertMaskedLM(backbone) if is_masked_lm else BertTextClassifier(backbone, 2)
    model.compile(
        keras.optimizers.AdamW(2e-5, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=settings["side"] == "keras_hub_xla",
    )
    return model


def repeated(batch: tuple[Any, ...], steps: int) -> Any:
    """A data set of one batch, again and again."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).repeat(LEFT_OUT + steps)


def ends_of_fit(model: Any, data: Any) -> list[float]:
    """When `fit` ended each step of one pass."""
    import keras

    ends: list[float] = []

    def ended(step: int, logs: dict[str, Any]) -> None:
        float(logs["loss"])  # once there's a number, the update is done
        ends.append(time.monotonic())

    timer = keras.callbacks.LambdaCallback(on_train_batch_end=ended)
    model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[timer])
    return ends


def torch_loop(
    case: Case, batch: dict[str, np.ndarray], settings: dict[str, Any]
) -> tuple[float, list[float]]:
    """Hugging Face's models in a loop of one's own."""
    began = time.monotonic()
    import torch  # noqa: F401
    from transformers import BertForPreTraining, BertForSequenceClassification  # noqa: F401

    import_seconds = time.monotonic() - began
    labels = {"labels": batch["label"]}
    if case.masked:
        masked = labels_everywhere(batch)
        labels = {"labels": masked, "next_sentence_label": batch["label"]}
    inputs = torch_inputs(batch, labels)
    step = torch_step(settings, case.masked > 0)
    ends = []
    for _ in range(LEFT_OUT + settings["steps"]):
        step(inputs)
        ends.append(time.monotonic())
    return import_seconds, ends


def labels_everywhere(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Hugging Face's labels, int (B, T): -100, which the loss leaves out, but where it's masked."""
    labels = np.full_like(batch["token_ids"], -100)
    row, slot = np.nonzero(batch["weights"])
    labels[row, batch["mask_positions"][row, slot]] = batch["masked_lm"][row, slot]
    return labels


def torch_inputs(batch: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> dict[str, Any]:
    """Our arrays by Hugging Face's names, as tensors."""
    import torch

    names = {
        "token_ids": "input_ids",
        "segment_ids": "token_type_ids",
        "padding_mask": "attention_mask",
    }
    arrays = {theirs: batch[own] for own, theirs in names.items()} | labels
    return {name: torch.tensor(x, dtype=torch.long) for name, x in arrays.items()}


def torch_step(settings: dict[str, Any], is_pretraining: bool) -> Callable[[dict[str, Any]], float]:
    """The update of a plain loop: inputs in, the loss back; a new model for two classes or both."""
    import torch
    from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification

    hidden = settings["hidden"]
    config = BertConfig(
        vocab_size=settings["vocabulary_size"],
        num_hidden_layers=settings["layers"],
        num_attention_heads=hidden // 64,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
    )
    model = (BertForPreTraining if is_pretraining else BertForSequenceClassification)(config)
    model.train()
    plain = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    ids = {id(parameter) for parameter in plain}
    decayed = [p for p in model.parameters() if id(p) not in ids]
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-5, eps=1e-6, fused=True)

    def step(inputs: dict[str, Any]) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings["dtype"] == "bfloat16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def keras_policy(dtype: str) -> str:
    """Keras's name for weights in float32 and products in that dtype."""
    return "float32" if dtype == "float32" else f"mixed_{dtype}"


def model_flops(case: Case, settings: dict[str, Any]) -> float:
    """Operations of an update on a batch."""
    width, length = settings["hidden"], case.length
    block = length * 12 * width**2 + 2 * length**2 * width  # kernels; scores, and the mix of values
    heads = width**2 + 2 * width  # pooler, two classes
    if case.masked:
        heads += case.masked * width * (width + settings["vocabulary_size"])
    return 3 * 2.0 * case.rows * (settings["layers"] * block + heads)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        measured(sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        import tyro

        main(tyro.cli(Args))
