"""Documents -> blocks -> shards: pretraining examples from a corpus of any size.

The stream of documents is cut into blocks of some megabytes. A block's documents are tokenized
and paired together, which needs nothing else, and its examples are written in random order.
Then each shard takes an equal slice of every block and shuffles it. So neither step holds more
than a block or a shard; a block or a shard is there whole or not at all, which is what a run
resumes by; and the bytes depend on the text and the settings alone, not on who made which
block, or when.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.data import records
from keras_bert.data.documents import DocumentTokenizer
from keras_bert.data.examples import PairMode, make_examples
from keras_bert.data.sources import Source, read_documents
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

BLOCK_CHARACTERS = 4_000_000
# Random next sentences come from the block's other documents, of which there should be many.
BLOCK_DOCUMENTS = 16
# Files are read in parts of consecutive ones, at least this large, which Beam reads side by side.
PART_BYTES = 64_000_000
EXAMPLES_PER_SHARD = 50_000  # once the first eight shards are full: some 20 MB at 128 tokens


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the examples depend on, besides the text and the tokenizer."""

    max_sequence_length: int = 128
    short_sequence_probability: float = 0.1
    pairs: PairMode = "next_sentence"
    duplicates: int = 1  # times that the text is paired anew
    words: bool = False  # `DocumentTokenizer`
    deduplicate: bool = False
    min_document_length: int = 0  # characters
    seed: int = 0


class Document(NamedTuple):
    """A document's paragraphs, and the index of the input it comes from."""

    paragraphs: list[str]
    work: int


class Block(NamedTuple):
    """Documents that are turned into examples together."""

    split: str  # "train" or "dev"
    name: str  # of its place in the corpus: names are in the order of the text
    documents: list[Document]

    def hash(self) -> str:
        """Of the documents, in hexadecimal."""
        return hashlib.blake2b(json.dumps(self.documents).encode(), digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the text comes from.

    Attributes:
        sources: The files, those of each input in a row.
        inputs: What the user called the inputs, by `Source.work`; for messages.
        dev_documents: How many of the last documents of each input are held out.
    """

    sources: Sequence[Source]
    inputs: Sequence[str]
    dev_documents: Sequence[int]

    def parts(self) -> list[list[Source]]:
        """The files, in parts of at least `PART_BYTES` and `BLOCK_DOCUMENTS`."""
        parts: list[list[Source]] = [[]]
        size = num_documents = 0
        for source in self.sources:
            if size >= PART_BYTES and num_documents >= BLOCK_DOCUMENTS:
                parts.append([])
                size = num_documents = 0
            parts[-1].append(source)
            size += source.num_bytes
            # Other files are taken to hold many.
            num_documents += 1 if source.document_break == "file" else BLOCK_DOCUMENTS
        if len(parts) > 1 and (size < PART_BYTES // 2 or num_documents < BLOCK_DOCUMENTS):
            parts[-2:] = [parts[-2] + parts[-1]]
        return parts


class Made(NamedTuple):
    """What has been made of a split: counts as `BlockMaker`'s, and the bytes of each shard."""

    counts: Mapping[str, int]
    shards: Mapping[str, int]


class DocumentFilter:
    """Says which documents are left out: short ones, and exact copies of earlier ones."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._seen: set[int] = set()  # some 60 bytes a document
        self.counts: collections.Counter[str] = collections.Counter()

    def __call__(self, paragraphs: list[str]) -> bool:
        """Whether to keep the document."""
        if is_short(paragraphs, self._settings):
            self.counts["documents_too_short"] += 1
            return False
        if not self._settings.deduplicate:
            return True
        hashed = document_hash(paragraphs)
        if hashed in self._seen:
            self.counts["documents_repeated"] += 1
            return False
        self._seen.add(hashed)
        return True


def is_short(paragraphs: list[str], settings: Settings) -> bool:
    """Whether a document has fewer characters than it must."""
    least = settings.min_document_length
    return least > 0 and sum(map(len, paragraphs)) < least


def document_hash(paragraphs: list[str]) -> int:
    """64 bits of the text: among ten million documents, two would share them once in 370,000."""
    text = "\n".join(paragraphs).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def read_blocks(
    corpus: Corpus,
    keep: Callable[[list[str]], bool],
    count_bytes: Callable[[int], object] = int,
) -> Iterator[Block]:
    """Reads the files as a stream and cuts their documents into blocks.

    Args:
        corpus: The files.
        keep: Which documents are kept, such as a `DocumentFilter`.
        count_bytes: As in `sources.read_documents`.

    Raises:
        InputError: from reading; an input holds no text, or none but what's held out.
    """
    dev, train = _Cutter("dev", 0), _Cutter("train", 0)
    for split, part, document in _documents(corpus, keep, count_bytes):
        if split == "dev":
            yield from dev.add(document)
            continue
        if part != train.part:
            yield from train.finish()
            train = _Cutter("train", part)
        yield from train.add(document)
    yield from train.finish()
    yield from dev.finish()


def _documents(
    corpus: Corpus, keep: Callable[[list[str]], bool], count_bytes: Callable[[int], object]
) -> Iterator[tuple[str, int, Document]]:
    """Yields (split, part, document)."""
    last_of = {source.work: source for source in corpus.sources}
    held: collections.deque[tuple[int, Document]] = collections.deque()  # perhaps held out
    num_documents = 0
    for part, files in enumerate(corpus.parts()):
        for source in files:
            num_held = corpus.dev_documents[source.work]
            for paragraphs in filter(keep, read_documents(source, count_bytes)):
                num_documents += 1
                held.append((part, Document(paragraphs, source.work)))
                if len(held) > num_held:
                    yield ("train", *held.popleft())
            if source is last_of[source.work]:
                check_input(corpus.inputs[source.work], num_documents, num_held)
                yield from (("dev", *row) for row in held)
                held.clear()
                num_documents = 0


def check_input(name: str, num_documents: int, dev_documents: int) -> None:
    """Refuses an input that holds no text, or none but what's held out."""
    if num_documents == 0:
        raise InputError(
            f"{name} holds no text, or none that --min-document-length and --deduplicate keep: "
            "give a file with a line that isn't blank."
        )
    if num_documents <= dev_documents:
        plural = "s" if num_documents > 1 else ""
        raise InputError(
            f"{name} has only {num_documents} document{plural}, and --dev-documents holds out "
            f"{dev_documents}: leave some to train on."
        )


def cut_blocks(split: str, part: int, documents: Iterable[Document]) -> Iterator[Block]:
    """Cuts the documents of one part into blocks."""
    cutter = _Cutter(split, part)
    for document in documents:
        yield from cutter.add(document)
    yield from cutter.finish()


class _Cutter:
    """Collects documents to blocks. The last block of a part takes up what would be a small one."""

    def __init__(self, split: str, part: int):
        self.split = split
        self.part = part
        self._count = 0
        self._full: list[Document] = []
        self._open: list[Document] = []
        self._size = 0  # characters of the open one

    def add(self, document: Document) -> Iterator[Block]:
        self._open.append(document)
        self._size += sum(map(len, document.paragraphs))
        if self._size >= BLOCK_CHARACTERS and len(self._open) >= BLOCK_DOCUMENTS:
            yield from self._take(self._full)
            self._full, self._open, self._size = self._open, [], 0

    def finish(self) -> Iterator[Block]:
        if self._size < BLOCK_CHARACTERS // 2 or len(self._open) < BLOCK_DOCUMENTS:
            self._full, self._open = self._full + self._open, []
        yield from self._take(self._full)
        yield from self._take(self._open)

    def _take(self, documents: list[Document]) -> Iterator[Block]:
        if documents:
            yield Block(self.split, f"{self.split}-{self.part:05d}-{self._count:05d}", documents)
            self._count += 1


class BlockMaker:
    """Turns a block into the serialized examples of it, in random order, and counts.

    Args:
        tokenizer: For the ids.
        settings: Of the examples.
        inputs: `Corpus.inputs`, for messages.
    """

    def __init__(self, tokenizer: WordPiece, settings: Settings, inputs: Sequence[str]):
        self._tokenizer = tokenizer
        self._settings = settings
        self._inputs = inputs
        self._tokenize = DocumentTokenizer(tokenizer, settings.words)

    def __call__(self, block: Block) -> tuple[list[bytes], collections.Counter[str]]:
        """Makes the block's examples.

        Returns:
            The records: any even number of them in a row is half random. Counts: documents,
            sentences, tokens, unknown_tokens, tokens_lost, examples, random_next,
            example_tokens (special ones included) and, for each length that occurs, "length N".

        Raises:
            InputError: as `make_examples`, naming the block's inputs and split.
        """
        try:
            return self._make(block)
        except InputError as error:
            works = sorted({document.work for document in block.documents})
            names = ", ".join(self._inputs[work] for work in works)
            raise InputError(f"{names} ({block.split}): {error}") from error

    def _make(self, block: Block) -> tuple[list[bytes], collections.Counter[str]]:
        tokenizer, settings = self._tokenizer, self._settings
        works = [document.work for document in block.documents]
        tokens = self._tokenize([document.paragraphs for document in block.documents], works)
        filled = np.diff(tokens.document_ends, prepend=0) > 0
        counts = collections.Counter(
            documents=int(filled.sum()),
            sentences=len(tokens.sentence_ends),
            tokens=len(tokens.token_ids),
            unknown_tokens=int((tokens.token_ids == tokenizer.unk_id).sum()),
        )
        made: list[bytes] = []
        for copy in range(settings.duplicates):
            examples, tokens_lost = make_examples(
                tokens,
                settings.max_sequence_length,
                _seed(settings.seed, block.name, copy),
                settings.short_sequence_probability,
                settings.pairs,
                cls_id=tokenizer.cls_id,
                sep_id=tokenizer.sep_id,
            )
            made += records.serialize_all(examples)
            lengths = examples.lengths()
            counts.update(
                tokens_lost=0 if copy else tokens_lost,
                examples=len(examples),
                random_next=int(examples.next_sentence.sum()),
                example_tokens=int(lengths.sum()),
            )
            for length, count in enumerate(np.bincount(lengths).tolist()):
                if count:
                    counts[f"length {length}"] += count
        if settings.duplicates > 1:
            made = _shuffled_by_twos(made, _seed(settings.seed, block.name, "copies"))
        return made, counts


def _shuffled_by_twos(made: list[bytes], seed: int) -> list[bytes]:
    """Keeps two in a row, one of each label, together."""
    order = random_order(len(made) // 2, seed)
    pairs = [record for i in order for record in made[2 * i : 2 * i + 2]]
    return pairs + made[2 * len(order) :]


def num_shards(num_examples: int) -> int:
    """Eight, fewer where there are hardly any examples, more where they would be large."""
    return max(1, min(8, num_examples // 2), num_examples // EXAMPLES_PER_SHARD)


def shard_slice(num_examples: int, shard: int, count: int) -> tuple[int, int]:
    """The start and end of what one of `count` shards takes of a block: as many of each label."""
    pairs = num_examples // 2
    start, end = (2 * (pairs * i // count) for i in (shard, shard + 1))
    is_last_here = num_examples % 2 and shard == count - 1
    return start, end + is_last_here


def in_shard_order(made: list[bytes], split: str, shard: int, seed: int) -> list[bytes]:
    """Shuffles what a shard has taken of the blocks, in the order of their names."""
    return [made[i] for i in random_order(len(made), _seed(seed, split, "shard", shard))]


def random_order(count: int, seed: int) -> list[int]:
    """A permutation that no version of Python or NumPy changes."""
    rng = random.Random(seed)  # noqa: S311
    return np.argsort([rng.random() for _ in range(count)], kind="stable").tolist()


def _seed(*parts: object) -> int:
    """A seed for each use, so that no two of them draw the same numbers."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
