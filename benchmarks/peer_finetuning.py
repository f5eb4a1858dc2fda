r"""One epoch of fine-tuning by what else trains BERT on a CPU: texts in, a score out.

    VENV/bin/python benchmarks/peer_finetuning.py SIDE TASK WEIGHTS TRAIN DEV BATCH_SIZE SEED

SIDE is `hf` (transformers and torch, batches as they are dealt), `hf_grouped` (the same with
batches of like lengths, made as the Trainer's length-grouped sampler makes them) or `keras_hub`
(on TensorFlow, every batch at one length: the least multiple of 8 that cuts no more than 1 % of
the examples, 384 for questions). TASK is `classify`, `pair`, `tag` or `qa`; WEIGHTS a folder in the
side's own format; TRAIN and DEV are files of the task. KerasHub has no task for tags and for
answers: there it's a dense layer on its backbone, its tokenizer reads word by word, and an answer
is whole words, as it tells no offsets.

All take AdamW at 5e-5, decay 0.01 but of biases and layer norms, gradients clipped to a norm of 1,
a tenth of the updates as warm-up and then a linear decay, dropout 0.1, windows of 384 tokens that
overlap by 128 (ours begin every 128, as in the original code: on a long context they're more).

Prints one JSON line: `seconds` from the first text's tokenization to the score of the dev file, and
what they're made of; `imports` and `loading` (of the weights) aren't part of them. `fill` is the
share of the computed tokens in training that aren't padding.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import pathlib
import re
import string
import sys
import time
from collections import Counter
from typing import Any, ClassVar, NamedTuple

import numpy as np

LIBRARIES = {"hf": "transformers", "hf_grouped": "transformers", "keras_hub": "keras_hub"}
RATE, WARMUP, DECAY, DROPOUT = 5e-5, 0.1, 0.01, 0.1
LONGEST, WINDOW, OVERLAP, ANSWER_LENGTH = 128, 384, 128, 30
NONE = -100  # the target of a token that isn't asked for, as torch has it
DEV_BATCH = 64
Rows = list[tuple[Any, ...]]


class Example(NamedTuple):
    """A row of the model, and what is asked of it.

    `target` is a class; the class of each token, or NONE; or the first and the last token of an
    answer. `places` tells what of the source a token is: of a word's first piece the word's number,
    of a context's token its start and end; else None.
    """

    token_ids: list[int]
    segment_ids: list[int]
    target: Any
    source: int
    places: list[Any]


def main(args: argparse.Namespace) -> None:
    """One process of one side."""
    seconds, ends = {}, [time.perf_counter()]

    def lap(name: str) -> None:
        ends.append(time.perf_counter())
        seconds[name] = round(ends[-1] - ends[-2], 3)

    importlib.import_module(LIBRARIES[args.side])
    lap("imports")
    rows, dev_rows = read(args.task, args.train), read(args.task, args.dev)
    names = classes(args.task, rows)
    side = (KerasHub if args.side == "keras_hub" else HuggingFace)(args, names)
    lap("loading")
    examples, dev = side.encoded(rows), side.encoded(dev_rows)
    lap("tokenization")
    fill = side.train(examples)
    lap("train")
    found = score(args.task, dev, side.logits(dev), dev_rows, names)
    lap("score")
    seconds["seconds"] = round(ends[-1] - ends[2], 3)
    print(json.dumps(seconds | {"found": round(found, 4), "fill": round(fill, 3)}))


# ---- Files and scores -----------------------------------------------------------------------


def read(task: str, path: str) -> Rows:
    """(label, texts), (words, tags) or (question, context, answers)."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    if task == "qa":
        return [
            (question["question"].strip(), paragraph["context"], question["answers"])
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    if task == "tag":
        blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
        lines = [[line.split("\t") for line in b.split("\n") if line.strip()] for b in blocks]
        return [([x[0] for x in each], [x[1].strip() for x in each]) for each in lines]
    cells = [line.split("\t") for line in text.split("\n")[1:] if line]
    return [(row[0], row[1:]) for row in cells]


def classes(task: str, rows: Rows) -> list[str]:
    """The names of the classes or tags; of answers, what the two logits of a token are."""
    if task == "qa":
        return ["start", "end"]
    if task == "tag":
        return sorted({tag for _, tags in rows for tag in tags})
    return sorted({row[0] for row in rows})


def score(
    task: str, examples: list[Example], outputs: list[np.ndarray], rows: Rows, names: list[str]
) -> float:
    """Accuracy, F1 of entities, or mean F1 of answers, of each example's logits."""
    if task == "qa":
        answers = best_answers(examples, outputs, rows)
        return float(np.mean([answer_f1(x, row[2]) for x, row in zip(answers, rows, strict=True)]))
    if task == "tag":
        true, found = set(), set()
        for example, logits in zip(examples, outputs, strict=True):
            tags = ["O"] * len(rows[example.source][1])
            for place, best in zip(example.places, logits.argmax(axis=-1), strict=True):
                if place is not None:
                    tags[place] = names[best]
            true |= {(example.source, *each) for each in entities(rows[example.source][1])}
            found |= {(example.source, *each) for each in entities(tags)}
        return 2 * len(true & found) / max(1, len(true) + len(found))
    right = [x.target == y.argmax() for x, y in zip(examples, outputs, strict=True)]
    return float(np.mean(right))


def entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Type, first and last word + 1; an I- of another type begins one, as in seqeval's default."""
    found, kind, first = [], "", 0
    for i, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            found.append((kind, first, i))
            kind = ""
        if tag != "O" and not kind:
            kind, first = tag[2:], i
    return found


def best_answers(examples: list[Example], outputs: list[np.ndarray], rows: Rows) -> list[str]:
    """For each question the span of the highest sum of logits in all of its windows."""
    best = [(-np.inf, "")] * len(rows)
    for example, logits in zip(examples, outputs, strict=True):
        inside = [i for i, place in enumerate(example.places) if place is not None]
        start, end = logits[inside, 0], logits[inside, 1]
        lengths = np.arange(len(inside)) - np.arange(len(inside))[:, None] + 1
        is_span = (lengths > 0) & (lengths <= ANSWER_LENGTH)
        sums = np.where(is_span, start[:, None] + end, -np.inf)
        first, last = divmod(int(sums.argmax()), len(inside))
        if sums[first, last] > best[example.source][0]:
            a, b = example.places[inside[first]][0], example.places[inside[last]][1]
            best[example.source] = sums[first, last], rows[example.source][1][a:b]
    return [text for _, text in best]


def answer_f1(found: str, answers: list[dict[str, Any]]) -> float:
    """SQuAD's: of the words without case, punctuation and articles, with the nearest answer."""

    def words(text: str) -> Counter[str]:
        text = text.lower().translate(str.maketrans("", "", string.punctuation))
        return Counter(word for word in text.split() if word not in ("a", "an", "the"))

    def f1(a: Counter[str], b: Counter[str]) -> float:
        return 2 * (a & b).total() / max(1, a.total() + b.total())

    return max(f1(words(found), words(each["text"])) for each in answers)


def answer_tokens(places: list[Any], answer: dict[str, Any]) -> tuple[int, int]:
    """The first and last token of an answer; 0 and 0, [CLS], where a window hasn't all of it."""
    start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = [i for i, x in enumerate(places) if x is not None and x[0] < end and start < x[1]]
    if not inside or places[inside[0]][0] > start or places[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def word_targets(places: list[Any], tags: list[str], names: list[str]) -> list[int]:
    """Classes at the words' first pieces; a tag that training hasn't is none."""
    indices = {name: i for i, name in enumerate(names)}
    return [NONE if x is None else indices.get(tags[x], NONE) for x in places]


def batch_of(task: str, examples: list[Example], length: int = 0) -> dict[str, np.ndarray]:
    """Arrays padded to a length, or to the longest example's."""
    length = length or max(len(each.token_ids) for each in examples)

    def padded(rows: list[list[int]], filler: int) -> np.ndarray:
        return np.array([row + [filler] * (length - len(row)) for row in rows], np.int64)

    targets = [each.target for each in examples]
    return {
        "token_ids": padded([each.token_ids for each in examples], 0),
        "segment_ids": padded([each.segment_ids for each in examples], 0),
        "padding_mask": padded([[1] * len(each.token_ids) for each in examples], 0),
        "target": padded(targets, NONE) if task == "tag" else np.array(targets, np.int64),
    }


def without_padding(examples: list[Example], outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Logits (C,) as they are, (T, C) of the tokens alone."""
    pairs = zip(examples, outputs, strict=True)
    return [y if y.ndim == 1 else y[: len(x.token_ids)] for x, y in pairs]


# ---- Hugging Face ---------------------------------------------------------------------------


class HuggingFace:
    """Transformers and torch in a plain loop."""

    NAMES: ClassVar = {
        "input_ids": "token_ids",
        "token_type_ids": "segment_ids",
        "attention_mask": "padding_mask",
    }
    MODELS: ClassVar = {"tag": "BertForTokenClassification", "qa": "BertForQuestionAnswering"}

    def __init__(self, args: argparse.Namespace, names: list[str]) -> None:
        import torch
        import transformers

        torch.manual_seed(args.seed)
        self.args, self.names = args, names
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(args.weights)
        if self.tokenizer.unk_token_id in self.tokenizer("a good film")["input_ids"]:
            sys.exit(f"{args.weights}: the tokenizer knows no words.")
        kind = self.MODELS.get(args.task, "BertForSequenceClassification")
        load = getattr(transformers, kind).from_pretrained
        self.model = load(args.weights, num_labels=len(names))

    def encoded(self, rows: Rows) -> list[Example]:
        """Tokenizes all rows in one call."""
        if self.args.task == "qa":
            return self.windows(rows)
        cut: dict[str, Any] = {"truncation": True, "max_length": LONGEST}
        if self.args.task == "tag":
            found = self.tokenizer([words for words, _ in rows], is_split_into_words=True, **cut)
        else:
            columns = zip(*(texts for _, texts in rows), strict=True)
            found = self.tokenizer(*map(list, columns), **cut)
        examples = []
        pairs = zip(found["input_ids"], found["token_type_ids"], strict=True)
        for i, (ids, types) in enumerate(pairs):
            if self.args.task == "tag":
                words = itertools.pairwise([None, *found.word_ids(i)])
                places = [x if x != before else None for before, x in words]
                target: Any = word_targets(places, rows[i][1], self.names)
            else:
                places, target = [], self.names.index(rows[i][0])
            examples.append(Example(ids, types, target, i, places))
        return examples

    def windows(self, rows: Rows) -> list[Example]:
        """Questions on windows of their contexts."""
        found = self.tokenizer(
            [row[0] for row in rows],
            [row[1] for row in rows],
            truncation="only_second",
            max_length=WINDOW,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        examples = []
        for i, source in enumerate(found["overflow_to_sample_mapping"]):
            parts, offsets = found.sequence_ids(i), found["offset_mapping"][i]
            places = [x if part == 1 else None for x, part in zip(offsets, parts, strict=True)]
            target = answer_tokens(places, rows[source][2][0])
            ids, types = found["input_ids"][i], found["token_type_ids"][i]
            examples.append(Example(ids, types, target, source, places))
        return examples

    def train(self, examples: list[Example]) -> float:
        """One epoch; returns the fill."""
        import torch

        size, computed = self.args.batch_size, 0
        lengths = np.array([len(each.token_ids) for each in examples])
        order = np.random.default_rng(self.args.seed).permutation(len(examples))
        if self.args.side == "hf_grouped":  # up to 50 batches at a time are sorted by length
            many = size * max(1, min(len(order) // (4 * size), 50))
            parts = [order[i : i + many] for i in range(0, len(order), many)]
            order = np.concatenate([x[np.argsort(-lengths[x], kind="stable")] for x in parts])
        optimizer, schedule = self.optimizer(-(-len(order) // size))
        self.model.train()
        for i in range(0, len(order), size):
            inputs = self.inputs([examples[j] for j in order[i : i + size]])
            computed += inputs["input_ids"].numel()
            self.model(**inputs).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return float(lengths.sum() / computed)

    def optimizer(self, updates: int) -> tuple[Any, Any]:
        """The one that the Trainer takes by default, and its linear schedule."""
        import torch
        import transformers

        decayed, others = [], []
        for name, weight in self.model.named_parameters():
            is_other = name.endswith("bias") or "LayerNorm" in name
            (others if is_other else decayed).append(weight)
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others}]
        optimizer = torch.optim.AdamW(groups, RATE, weight_decay=0.0, fused=True)
        warmup = round(WARMUP * updates)
        return optimizer, transformers.get_linear_schedule_with_warmup(optimizer, warmup, updates)

    def logits(self, examples: list[Example]) -> list[np.ndarray]:
        """Of each example; grouped, batches are of like lengths here as well."""
        import torch

        self.model.eval()
        order = np.arange(len(examples))
        if self.args.side == "hf_grouped":
            order = np.argsort([-len(each.token_ids) for each in examples], kind="stable")
        outputs: dict[int, np.ndarray] = {}
        with torch.inference_mode():
            for i in range(0, len(order), DEV_BATCH):
                numbers = order[i : i + DEV_BATCH].tolist()
                inputs = self.inputs([examples[j] for j in numbers])
                found = self.model(**{name: inputs[name] for name in self.NAMES})
                is_span = self.args.task == "qa"
                logits = torch.stack(found.to_tuple(), dim=-1) if is_span else found.logits
                outputs |= dict(zip(numbers, logits.numpy(), strict=True))
        return without_padding(examples, [outputs[i] for i in range(len(examples))])

    def inputs(self, examples: list[Example]) -> dict[str, Any]:
        """A batch under the names that Hugging Face's models know."""
        import torch

        batch = batch_of(self.args.task, examples)
        arrays = {name: batch[ours] for name, ours in self.NAMES.items()}
        if self.args.task == "qa":
            arrays["start_positions"], arrays["end_positions"] = batch["target"].T.copy()
        else:
            arrays["labels"] = batch["target"]
        return {name: torch.from_numpy(x) for name, x in arrays.items()}


# ---- KerasHub -------------------------------------------------------------------------------


class KerasHub:
    """KerasHub's backbone under `fit`, every batch at one length."""

    def __init__(self, args: argparse.Namespace, names: list[str]) -> None:
        import keras
        import keras_hub

        keras.utils.set_random_seed(args.seed)
        self.args, self.names, self.length = args, names, 0
        self.tokenizer = keras_hub.models.BertTokenizer.from_preset(args.weights)
        backbone = keras_hub.models.BertBackbone.from_preset(args.weights)
        if args.task in ("classify", "pair"):
            self.model = keras_hub.models.BertTextClassifier(
                backbone, len(names), preprocessor=None, dropout=DROPOUT
            )
            return
        x = keras.layers.Dropout(DROPOUT)(backbone.output["sequence_output"])
        x = keras.layers.Dense(len(names))(x)
        if args.task == "qa":
            x = keras.layers.Permute((2, 1))(x)  # the loss is over the tokens
        self.model = keras.Model(backbone.input, x)

    def encoded(self, rows: Rows) -> list[Example]:
        """Tokenizes all rows in one call; the first rows choose the length of all."""
        if self.args.task == "qa":
            self.length = WINDOW
            return self.windows(rows)
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        examples = []
        if self.args.task == "tag":
            for i, words in enumerate(self.pieces([words for words, _ in rows])):
                firsts = [[k] + [None] * (len(word) - 1) for k, word in enumerate(words) if word]
                places = [None, *itertools.chain(*firsts), None]
                ids = [cls, *itertools.chain(*words), sep]
                target: Any = word_targets(places, rows[i][1], self.names)
                examples.append(Example(ids, [0] * len(ids), target, i, places))
        else:
            for i, parts in enumerate(self.pieces([texts for _, texts in rows])):
                ids, types = [cls], [0]
                for kind, part in enumerate(parts):
                    ids += [*part, sep]
                    types += [kind] * (len(part) + 1)
                examples.append(Example(ids, types, self.names.index(rows[i][0]), i, []))
        if not self.length:
            lengths = [len(each.token_ids) for each in examples]
            most = int(np.quantile(lengths, 0.99, method="higher"))
            self.length = min(LONGEST, -(-most // 8) * 8)
        return [self.shortened(each) for each in examples]

    def windows(self, rows: Rows) -> list[Example]:
        """Questions on windows of their contexts; a token's place is that of its whole word."""
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        words = {row[1]: list(re.finditer(r"\S+", row[1])) for row in rows}
        pieces = self.pieces([[word.group() for word in each] for each in words.values()])
        encoded = {
            context: [(x, word.span()) for word, ids in zip(each, part, strict=True) for x in ids]
            for (context, each), part in zip(words.items(), pieces, strict=True)
        }
        examples = []
        for i, (question,) in enumerate(self.pieces([[row[0]] for row in rows])):
            tokens, head = encoded[rows[i][1]], [cls, *question, sep]
            room = WINDOW - len(head) - 1
            for first in range(0, max(1, len(tokens) - OVERLAP), room - OVERLAP):
                shown = tokens[first : first + room]
                ids = [*head, *(x for x, _ in shown), sep]
                places = [*[None] * len(head), *(place for _, place in shown), None]
                types = [0] * len(head) + [1] * (len(shown) + 1)
                target = answer_tokens(places, rows[i][2][0])
                examples.append(Example(ids, types, target, i, places))
        return examples

    def pieces(self, rows: list[list[str]]) -> list[list[list[int]]]:
        """The ids of every string of every row."""
        found = iter(self.tokenizer([text for row in rows for text in row]))
        return [[next(found) for _ in row] for row in rows]

    def shortened(self, example: Example) -> Example:
        """An example with its end cut off, but for [SEP]."""
        ids, types, target, source, places = example
        end = self.length - 1
        if len(ids) <= self.length:
            return example
        if isinstance(target, list):
            target, places = [*target[:end], NONE], [*places[:end], None]
        return Example([*ids[:end], ids[-1]], types[: end + 1], target, source, places)

    def train(self, examples: list[Example]) -> float:
        """One epoch; returns the fill."""
        import keras

        self.model.compile(
            self.optimizer(-(-len(examples) // self.args.batch_size)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NONE),
        )
        # KerasHub's classifier makes a data set of arrays, which it doesn't shuffle.
        order = np.random.default_rng(self.args.seed).permutation(len(examples))
        inputs = batch_of(self.args.task, [examples[i] for i in order], self.length)
        target = inputs.pop("target")
        size = self.args.batch_size
        self.model.fit(inputs, target, batch_size=size, epochs=1, shuffle=False, verbose=0)
        return float(inputs["padding_mask"].mean())

    def optimizer(self, updates: int) -> Any:
        """Keras's AdamW, with the schedule that it has no name for."""
        import keras

        warmup = max(1, round(WARMUP * updates))

        class WarmupLinear(keras.optimizers.schedules.LearningRateSchedule):
            """Up to the peak, then down to 0."""

            def __call__(self, step: Any) -> Any:
                step = keras.ops.cast(step, "float32")
                falling = (updates - step) / max(1, updates - warmup)
                return RATE * keras.ops.clip(keras.ops.minimum(step / warmup, falling), 0, 1)

        optimizer = keras.optimizers.AdamW(WarmupLinear(), weight_decay=DECAY, global_clipnorm=1.0)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer

    def logits(self, examples: list[Example]) -> list[np.ndarray]:
        """Of each example."""
        inputs = batch_of(self.args.task, examples, self.length)
        del inputs["target"]
        found = self.model.predict(inputs, batch_size=DEV_BATCH, verbose=0)
        if self.args.task == "qa":
            found = found.transpose(0, 2, 1)
        return without_padding(examples, list(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("side", choices=tuple(LIBRARIES))
    parser.add_argument("task", choices=("classify", "pair", "tag", "qa"))
    for name, kind in (("weights", str), ("train", str), ("dev", str), ("batch_size", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("seed", type=int)
    main(parser.parse_args())
