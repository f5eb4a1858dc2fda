r"""Turn plain text into examples to pretrain BERT on: sentence pairs in TFRecord shards.

    python recipes/create_pretraining_data.py --input novel.txt speeches.txt \
        --document-break heading blank --vocabulary vocab.txt --lowercase \
        --max-sequence-length 128 --output-dir data/en128

Tokens are masked later, anew for each batch of `pretrain.py`, so one folder serves any number
of passes.

Expect: "Pride and Prejudice" and 20 speeches (1.5 MB of text): 307,000 tokens in
3,700 examples of 128, 95% full, in 5 seconds on one core, of which 4 are imports. More
workers pay from some tens of megabytes on.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table

from keras_bert import WordPiece, recipe
from keras_bert.data import batches, records
from keras_bert.data.documents import DocumentBreak, read_documents, tokenize_documents
from keras_bert.data.examples import (
    MIN_SEQUENCE_LENGTH,
    Example,
    TokenizedDocument,
    sentence_pairs,
)
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.tokenizer_checks import check_casing, check_unknown

EXAMPLES_PER_SHARD = 50_000  # once the first eight shards are full: some 20 MB at 128 tokens


@dataclasses.dataclass(frozen=True)
class Args:
    """Turn plain text into examples to pretrain BERT on."""

    input: tuple[str, ...]
    """UTF-8 text files."""
    vocabulary: str
    """vocab.txt, one token a line, with [PAD] [UNK] [CLS] [SEP] [MASK]."""
    output_dir: str
    """Where shards, vocabulary and manifest go; held-out documents in a folder dev inside."""
    lowercase: bool = True
    """Whether to lower-case the text: as the vocabulary was made."""
    max_sequence_length: int = 128
    """Tokens in the longest example, [CLS] and two [SEP] included."""
    short_sequence_probability: float = 0.1
    """Share of examples that are made shorter on purpose."""
    document_break: tuple[DocumentBreak, ...] = ("blank",)
    """What ends a document: a blank line, the line before a heading, or the file's end; one
    value for all inputs or one for each."""
    unwrap: bool = False
    """Join hard-wrapped lines: a paragraph ends at a blank line, not at each line."""
    dev_documents: tuple[int, ...] = (0,)
    """Last documents of an input to hold out; one number for all inputs or one for each."""
    workers: int = 1
    """Processes that tokenize; the result is the same for any number."""
    seed: int = 0
    """For pairs, lengths and order."""
    overwrite: bool = False
    """Replace the output folder."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    check_args(args)
    tokenizer = WordPiece(args.vocabulary, lowercase=args.lowercase)
    if tokenizer.vocabulary_size == len(tokenizer.special_ids):
        raise InputError(f"{args.vocabulary} holds nothing but special tokens.")
    document_breaks = one_for_each("--document-break", args.document_break, args.input)
    dev_documents = one_for_each("--dev-documents", args.dev_documents, args.input)

    # ---- Data ------------------------------------------------------------------
    texts: list[list[str]] = []
    origins: list[tuple[str, int]] = []  # of each text: split, index of the input
    for work, path in enumerate(args.input):
        documents = list(read_documents(path, document_breaks[work], args.unwrap))
        num_train = len(documents) - dev_documents[work]
        if num_train < 1:
            raise InputError(
                f"{path} has only {len(documents)} documents, and --dev-documents holds out "
                f"{dev_documents[work]}: leave some to train on."
            )
        texts += documents
        origins += [("train", work)] * num_train + [("dev", work)] * dev_documents[work]

    check_casing(tokenizer)
    check_unknown(tokenizer, [text for document in texts[:200] for text in document])
    tokenized: dict[str, list[TokenizedDocument]] = {"train": [], "dev": []}
    progress = rich.progress.track(
        tokenize_documents(texts, tokenizer, args.workers),
        "Tokenizing",
        len(texts),
        console=rich.console.Console(stderr=True),
    )
    for (split, work), sentences in zip(origins, progress, strict=True):
        if sentences:
            tokenized[split].append(TokenizedDocument(sentences, work))
    splits = ["train", "dev"] if any(dev_documents) else ["train"]
    made = {split: make_examples(split, tokenized[split], tokenizer, args) for split in splits}

    # ---- Save ------------------------------------------------------------------
    output_dir = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    settings = dataclasses.asdict(args) | {"input": [os.path.basename(p) for p in args.input]}
    for name in ("vocabulary", "output_dir", "workers", "overwrite"):
        del settings[name]  # the examples don't depend on them
    counts = {split: split_counts for split, (_, split_counts) in made.items()}
    for split in reversed(splits):  # the manifest of the whole folder comes last
        folder = output_dir / "dev" if split == "dev" else output_dir
        examples, _ = made[split]
        shards = records.write_shards(examples, folder, num_shards(len(examples)))
        records.write_manifest(
            folder, settings=settings, tokenizer=tokenizer, counts=counts[split], shards=shards
        )
    metrics: dict[str, Any] = dict(counts["train"])
    if "dev" in counts:
        metrics["dev"] = counts["dev"]
    metrics["seconds"] = round(time.perf_counter() - started, 1)
    write_json(output_dir / "metrics.json", metrics)

    print_counts(counts)
    print_examples(output_dir, tokenizer)
    return metrics


def check_args(args: Args) -> None:
    if not args.input:
        raise InputError("--input needs at least one file.")
    if args.max_sequence_length < MIN_SEQUENCE_LENGTH:
        raise InputError(
            f"--max-sequence-length must be at least {MIN_SEQUENCE_LENGTH}. "
            f"Received: {args.max_sequence_length}."
        )
    if not 0 <= args.short_sequence_probability <= 1:
        raise InputError(
            "--short-sequence-probability must be between 0 and 1. "
            f"Received: {args.short_sequence_probability}."
        )
    if args.workers < 1 or min(args.dev_documents, default=0) < 0 or args.seed < 0:
        raise InputError("--workers must be at least 1, --dev-documents and --seed at least 0.")


def one_for_each(flag: str, values: Sequence[Any], inputs: Sequence[str]) -> list[Any]:
    if len(values) not in (1, len(inputs)):
        raise InputError(
            f"{flag} takes one value for all inputs or one for each. "
            f"Received: {len(values)} values for {len(inputs)} inputs."
        )
    return list(values) * len(inputs) if len(values) == 1 else list(values)


def make_examples(
    split: str, documents: list[TokenizedDocument], tokenizer: WordPiece, args: Args
) -> tuple[list[Example], dict[str, int]]:
    """Returns the examples and the counts that go into the manifest."""
    try:
        examples, tokens_lost = sentence_pairs(
            documents,
            args.max_sequence_length,
            args.seed,
            args.short_sequence_probability,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
        )
    except InputError as error:
        raise InputError(f"{', '.join(args.input)} ({split}): {error}") from error
    sentences = [sentence for document in documents for sentence in document.sentences]
    counts = {
        "documents": len(documents),
        "sentences": len(sentences),
        "examples": len(examples),
        "random_next": sum(example.next_sentence for example in examples),
        "tokens": sum(map(len, sentences)),
        "tokens_lost": tokens_lost,
        "unknown_tokens": sum(sentence.count(tokenizer.unk_id) for sentence in sentences),
    }
    return examples, counts


def num_shards(num_examples: int) -> int:
    """Eight, fewer where there are fewer examples, more where they would be large."""
    return max(min(8, num_examples), num_examples // EXAMPLES_PER_SHARD)


def print_counts(counts: dict[str, dict[str, int]]) -> None:
    table = rich.table.Table("", *counts)
    for name in counts["train"]:
        table.add_row(name.replace("_", " "), *(f"{split[name]:,}" for split in counts.values()))
    rich.console.Console().print(table)


def print_examples(folder: os.PathLike[str], tokenizer: WordPiece) -> None:
    """Prints three examples as the model sees them."""
    for inputs, labels, weights in batches.pretraining(folder, 1, training=False).take(3):
        length = int(inputs["padding_mask"].numpy().sum())
        masked = labels["masked_lm"].numpy()[weights["masked_lm"].numpy() > 0]
        token_ids = inputs["token_ids"].numpy()[0, :length]
        print("\ntokens       ", *(tokenizer.vocabulary[i] for i in token_ids))
        print("masked_lm    ", *(tokenizer.vocabulary[i] for i in masked))
        label = int(labels["next_sentence"][0])
        print("next_sentence", label, ("(B follows A)", "(B is random)")[label])


if __name__ == "__main__":
    recipe.run(main, Args)
