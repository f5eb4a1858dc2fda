"""Data creation as an Apache Beam pipeline, for corpora past one machine.

Beam is the engine and the functions are those of `creation`, so the shards hold the same bytes
as those made on one machine. Parts of the corpus (`Corpus.parts`) are read side by side, so a
large corpus should be many files. Each is read twice: to count its documents, of which the last
ones are held out, and to pair them.
"""

from __future__ import annotations

import collections
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from keras_bert.data import creation, records
from keras_bert.data.creation import Block, BlockMaker, Corpus, Document, Made, Settings
from keras_bert.data.sources import Source, read_documents
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

Runner = Literal["DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner"]
RESULT = "result.json.unfinished"

Counts = collections.Counter[str]
# A part's number, its files, and the numbers of its documents that repeat earlier ones.
Part = tuple[int, list[Source], frozenset[int]]


def create(
    corpus: Corpus,
    settings: Settings,
    tokenizer: WordPiece,
    folder: str | os.PathLike[str],
    runner: Runner,
    options: Sequence[str] = (),
) -> dict[str, Made]:
    """Writes the shards into `folder`, and into its folder `dev` those held out.

    What an earlier run has left there is removed first.

    Args:
        corpus: The text.
        settings: Of the examples.
        tokenizer: For the ids.
        folder: Local, or an address that TensorFlow can write to (`gs://`).
        runner: Beam's name of it.
        options: Command-line options for it, such as `--project=mine`.

    Returns:
        What has been made of each split.

    Raises:
        InputError: apache_beam isn't installed. Bad text raises it inside the pipeline, and the
            runner says so in an error of its own.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise InputError("--runner needs apache_beam: run `pip install apache-beam`.") from error

    folder = os.fspath(folder)
    for path in earlier_files(folder):
        tf.io.gfile.remove(path)
    for split in ("train", "dev") if any(corpus.dev_documents) else ("train",):
        tf.io.gfile.makedirs(_split_folder(folder, split))
    config = tuple(tokenizer.get_config().items())
    maker = tuple(tokenizer.vocabulary), config, settings, tuple(corpus.inputs)
    view = beam.pvalue
    with beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *options])) as pipeline:
        numbered = pipeline | beam.Create(list(enumerate(corpus.parts()))) | beam.Reshuffle()
        parts = _with_repeated(numbered, settings)
        found = parts | "Count documents" >> beam.Map(_count, settings)
        counted = view.AsList(found)
        train = parts | "Cut" >> beam.FlatMap(_train_blocks, counted, corpus, settings)
        dev = (
            parts
            | "Hold out" >> beam.FlatMap(_dev_documents, counted, corpus, settings)
            | "Gather what's held out" >> beam.GroupByKey()
            | "Cut what's held out" >> beam.FlatMap(_dev_blocks)
        )
        blocks = (train, dev) | beam.Flatten() | "Spread" >> beam.Reshuffle()
        made = blocks | "Make" >> beam.Map(_make_block, *maker)
        counts = made | "Counts" >> beam.Map(lambda row: (_split_of(row[0]), row[2]))
        left_out = found | "Left out" >> beam.Map(lambda row: ("train", row[2]))
        summed = (counts, left_out) | "All counts" >> beam.Flatten() | beam.CombinePerKey(_sum)
        totals = view.AsDict(summed)
        shards = (
            made
            | "Slice" >> beam.FlatMap(_slices, totals)
            | "Gather shards" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write_shard, totals, folder, settings.seed)
        )
        end = pipeline | "End" >> beam.Create([folder])
        _ = end | "Write result" >> beam.Map(_write_result, totals, view.AsList(shards))
    return _read_result(folder)


def earlier_files(folder: str) -> list[str]:
    """The files of a run in a folder; first the manifests, without which the rest is no data."""
    names = (records.MANIFEST, "metrics.json", "examples-*")
    patterns = [
        tf.io.gfile.join(_split_folder(folder, split), name)
        for name in names
        for split in ("train", "dev")
    ]
    return [path for pattern in patterns for path in tf.io.gfile.glob(pattern)]


def write_metrics(folder: str, metrics: Mapping[str, Any]) -> None:
    """Writes `metrics.json` to a store, which takes a file whole."""
    with tf.io.gfile.GFile(tf.io.gfile.join(folder, "metrics.json"), "w") as file:
        file.write(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")


def _with_repeated(numbered: Any, settings: Settings) -> Any:
    """Parts as (number, files, numbers of the documents that repeat earlier ones)."""
    import apache_beam as beam

    if not settings.deduplicate:
        return numbered | "No repeats" >> beam.Map(lambda part: (*part, frozenset()))
    repeated = (
        numbered
        | "Hash" >> beam.FlatMap(_hashes, settings)
        | "Same hash" >> beam.GroupByKey()
        | "All but the first" >> beam.FlatMap(lambda row: sorted(row[1])[1:])
    )
    return (
        {"files": numbered, "repeated": repeated}
        | "By part" >> beam.CoGroupByKey()
        | "Repeats" >> beam.Map(lambda x: (x[0], x[1]["files"][0], frozenset(x[1]["repeated"])))
    )


def _hashes(
    numbered: tuple[int, list[Source]], settings: Settings
) -> Iterator[tuple[int, tuple[int, int]]]:
    part, files = numbered
    for number, document in _kept((part, files, frozenset()), settings, collections.Counter()):
        yield creation.document_hash(document.paragraphs), (part, number)


def _kept(part: Part, settings: Settings, left_out: Counts) -> Iterator[tuple[int, Document]]:
    """The documents of a part that are kept, with their numbers among those not too short."""
    _, files, repeated = part
    number = -1
    for source in files:
        for paragraphs in read_documents(source):
            if creation.is_short(paragraphs, settings):
                left_out["documents_too_short"] += 1
                continue
            number += 1
            if number in repeated:
                left_out["documents_repeated"] += 1
            else:
                yield number, Document(paragraphs, source.work)


def _count(part: Part, settings: Settings) -> tuple[int, dict[int, int], Counts]:
    """(the part's number, its documents of each input, what's left out)."""
    left_out: Counts = collections.Counter()
    works = collections.Counter(document.work for _, document in _kept(part, settings, left_out))
    return part[0], dict(works), left_out


def _split_documents(
    part: Part,
    counted: Sequence[tuple[int, dict[int, int], Counts]],
    corpus: Corpus,
    settings: Settings,
) -> Iterator[tuple[str, int, Document]]:
    """(split, number, document), where the last documents of each input are held out."""
    before: collections.Counter[int] = collections.Counter()
    total: collections.Counter[int] = collections.Counter()
    for number, works, _ in counted:
        total.update(works)
        if number < part[0]:
            before.update(works)
    for work, name in enumerate(corpus.inputs):
        creation.check_input(name, total[work], corpus.dev_documents[work])
    for number, document in _kept(part, settings, collections.Counter()):
        work = document.work
        is_held_out = before[work] >= total[work] - corpus.dev_documents[work]
        before[work] += 1
        yield "dev" if is_held_out else "train", number, document


def _train_blocks(part: Part, *of_corpus: Any) -> Iterator[Block]:
    documents = _split_documents(part, *of_corpus)
    kept = (document for split, _, document in documents if split == "train")
    yield from creation.cut_blocks("train", part[0], kept)


def _dev_documents(part: Part, *of_corpus: Any) -> Iterator[tuple[str, tuple[int, int, Document]]]:
    for split, number, document in _split_documents(part, *of_corpus):
        if split == "dev":
            yield split, (part[0], number, document)


def _dev_blocks(row: tuple[str, Iterable[tuple[int, int, Document]]]) -> Iterator[Block]:
    held_out = sorted(row[1])
    yield from creation.cut_blocks("dev", 0, (document for _, _, document in held_out))


@functools.lru_cache(1)
def _block_maker(
    vocabulary: tuple[str, ...],
    config: tuple[tuple[str, Any], ...],
    settings: Settings,
    inputs: tuple[str, ...],
) -> BlockMaker:
    return BlockMaker(WordPiece(list(vocabulary), **dict(config)), settings, inputs)


def _make_block(block: Block, *of_maker: Any) -> tuple[str, list[bytes], Counts]:
    return (block.name, *_block_maker(*of_maker)(block))


def _split_of(block_name: str) -> str:
    return block_name.split("-")[0]


def _sum(counts: Iterable[Counts]) -> Counts:
    total: Counts = collections.Counter()
    for each in counts:
        total.update(each)
    return total


def _slices(
    made: tuple[str, list[bytes], Counts], totals: Mapping[str, Counts]
) -> Iterator[tuple[tuple[str, int], tuple[str, list[bytes]]]]:
    """((split, shard), (name of the block, what the shard takes of it))."""
    name, serialized, _ = made
    split = _split_of(name)
    count = creation.num_shards(totals[split]["examples"])
    for shard in range(count):
        start, end = creation.shard_slice(len(serialized), shard, count)
        yield (split, shard), (name, serialized[start:end])


def _write_shard(
    row: tuple[tuple[str, int], Iterable[tuple[str, list[bytes]]]],
    totals: Mapping[str, Counts],
    folder: str,
    seed: int,
) -> tuple[str, str, int]:
    """Writes a shard; returns its split, name and bytes."""
    (split, shard), slices = row
    name = records.shard_names(creation.num_shards(totals[split]["examples"]))[shard]
    taken = [record for _, serialized in sorted(slices) for record in serialized]
    path = tf.io.gfile.join(_split_folder(folder, split), name)
    records.write_shard(creation.in_shard_order(taken, split, shard, seed), path)
    return split, name, tf.io.gfile.stat(path).length


def _split_folder(folder: str, split: str) -> str:
    return tf.io.gfile.join(folder, "dev") if split == "dev" else folder


def _write_result(
    folder: str, totals: Mapping[str, Counts], shards: Iterable[tuple[str, str, int]]
) -> None:
    """Tells the process that started the pipeline what has been made."""
    with tf.io.gfile.GFile(tf.io.gfile.join(folder, RESULT), "w") as file:
        file.write(json.dumps({"counts": dict(totals), "shards": sorted(shards)}))


def _read_result(folder: str) -> dict[str, Made]:
    path = tf.io.gfile.join(folder, RESULT)
    with tf.io.gfile.GFile(path, "r") as file:
        result = json.loads(file.read())
    tf.io.gfile.remove(path)
    return {
        split: Made(counts, {name: size for of, name, size in result["shards"] if of == split})
        for split, counts in result["counts"].items()
    }
