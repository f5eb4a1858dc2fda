r"""Compare the speed of the tokenizer's three forms with Hugging Face's and with the original's.

    pip install tokenizers
    python benchmarks/tokenizer_speed.py --vocabulary bert-base-uncased/vocab.txt \
        --input mr_sentence_polarity/train.tsv banking77/train.tsv --original tokenization.py

`tokenization.py` is google-research/bert's, downloaded beforehand. Every form takes its turn in
every round, and the medians of the rounds are reported, in sentences a second.

Measured with these tables on two cores that other work shared (load 6), sentences a second:

    tf.data form          241,685   14.1 x Hugging Face's encode_batch of all 20,000 (17,099)
    core ops                28,938    1.7 x encode_batch of 256 (16,850); 1.1 ms for one sentence
    Python                  36,253    5.2 x the original (6,938)

and on quieter cores 365,021 against 26,052; 67,733 against 36,590; 128,622 against 13,864. Chinese
reviews under bert-base-chinese, which have no ASCII shortcut: 27,096 against 5,471 (5.0 x). No
sentence had other ids than the original's.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from keras_bert import WordPiece, recipe
from keras_bert.data.texts import read_labelled_texts
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare the speed of the tokenizer's three forms with Hugging Face's and the original's."""

    vocabulary: str
    """A lower-cased vocabulary, a token a line."""
    input: tuple[str, ...]
    """Tables with the columns `label` and `text`, as for finetune_classifier.py."""
    original: str | None = None
    """The original tokenization.py; without it that comparison is left out."""
    sentences: int = 20_000
    """How many sentences to take; fewer texts are repeated."""
    batch_size: int = 256
    """Sentences a batch, in `tf.data` and in the small batches handed to Hugging Face."""
    rounds: int = 7
    """How often everything is measured."""
    threads: int = 2
    """Of Hugging Face, and parallel calls of `tf.data`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    texts = [row.text for path in args.input for row in read_labelled_texts(path)]
    texts = (texts * -(-args.sentences // len(texts)))[: args.sentences]
    size = args.batch_size
    batches = [texts[i : i + size] for i in range(0, len(texts), size)]
    tokenizer = WordPiece(args.vocabulary)
    hugging_face = make_hugging_face(tokenizer)

    fast = passes(texts, args, tokenizer.to_tf)
    core = passes(texts, args, lambda strings: tokenizer.to_tf(strings, core_ops=True))
    forms: dict[str, Callable[[], Any]] = {
        "hugging_face": lambda: hugging_face.encode_batch(texts, add_special_tokens=False),
        "hugging_face_batches": lambda: [
            hugging_face.encode_batch(batch, add_special_tokens=False) for batch in batches
        ],
        "tf_data": lambda: next(fast),
        "core_ops": lambda: next(core),
        # A new one each time: it remembers the words it has met.
        "python": lambda: WordPiece(args.vocabulary)(texts),
    }
    if args.original:
        original = make_original(args.original, tokenizer)
        forms["original"] = lambda: [original(text) for text in texts]

    # ---- Check -----------------------------------------------------------------
    expected = tokenizer(texts)
    for core_ops in (False, True):
        if tokenizer.to_tf(texts, core_ops).to_list() != expected:
            raise RuntimeError(f"to_tf(core_ops={core_ops}) gives other ids than Python.")
    if args.original and forms["original"]() != expected:
        raise RuntimeError("The original gives other ids.")
    found = forms["hugging_face"]()
    differing = sum(row.ids != ids for row, ids in zip(found, expected, strict=True))

    # ---- Measure ---------------------------------------------------------------
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for i in range(args.rounds + 1):
        for name, form in forms.items():
            started = time.perf_counter()
            form()
            if i:  # the first round is warm-up
                seconds[name].append(time.perf_counter() - started)
    rates = {name: len(texts) / statistics.median(values) for name, values in seconds.items()}
    metrics = {
        **{f"{name}_per_second": round(rate) for name, rate in rates.items()},
        "tf_data_over_hugging_face": round(rates["tf_data"] / rates["hugging_face"], 2),
        "core_ops_over_hugging_face": round(rates["core_ops"] / rates["hugging_face_batches"], 2),
        "one_sentence_ms": round(one_sentence(tokenizer, texts), 3),
        "differing_from_hugging_face": differing,
    }
    if args.original:
        metrics["python_over_original"] = round(rates["python"] / rates["original"], 2)
    return metrics


def passes(texts: list[str], args: Args, tokenize: Callable[..., Any]) -> Iterator[None]:
    """Goes through the texts once at each `next`; one iterator, which a trainer has too."""
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(args.batch_size).cache()
    ids = batches.repeat().map(tokenize, num_parallel_calls=args.threads)
    for i, _ in enumerate(ids, 1):
        if i % -(-len(texts) // args.batch_size) == 0:
            yield


def one_sentence(tokenizer: WordPiece, texts: list[str]) -> float:
    """The median milliseconds of the graph for exports, called with one sentence."""
    milliseconds = []
    for text in texts[:300]:
        strings = tf.constant([text])
        started = time.perf_counter()
        tokenizer.to_tf(strings, core_ops=True)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return statistics.median(milliseconds)


def make_hugging_face(tokenizer: WordPiece) -> Tokenizer:
    ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    unknown, limit = tokenizer.vocabulary[tokenizer.unk_id], tokenizer.max_chars_per_word
    model = models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=limit)
    made = Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def make_original(path: str, tokenizer: WordPiece) -> Callable[[str], list[int]]:
    spec = importlib.util.spec_from_file_location("original_tokenization", path)
    if spec is None or spec.loader is None:
        raise InputError(f"--original must be a Python file. Received: {path}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    basic, pieces = module.BasicTokenizer(), module.WordpieceTokenizer(ids)
    return lambda text: [ids[p] for word in basic.tokenize(text) for p in pieces.tokenize(word)]


if __name__ == "__main__":
    recipe.run(main, Args)
