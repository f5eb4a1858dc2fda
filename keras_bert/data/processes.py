"""Data creation on one machine: blocks and shards made by several processes, and resumed.

What has been made of the blocks waits in `blocks.unfinished` inside the output folder, as
large as the shards will be: for each block its records and then, with which it counts as made,
a JSON file of its counts. `plan.json` ends the list of blocks; `tokenizer.json` says whose ids
they hold.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import gc
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from keras_bert.data import creation, records
from keras_bert.data.creation import (
    Block,
    BlockMaker,
    Corpus,
    DocumentFilter,
    Made,
    Settings,
)
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.tokenizers import WordPiece

BLOCKS = "blocks.unfinished"
PLAN = "plan.json"
TOKENIZER = "tokenizer.json"
REPLACES = "replaces"  # in the blocks' folder, while older data lie beside it

Task = TypeVar("Task")
Result = TypeVar("Result")
Plan = dict[str, Any]  # of each split, counts, and the (name, number of records) of its blocks


def create(
    corpus: Corpus,
    settings: Settings,
    tokenizer: WordPiece,
    folder: pathlib.Path,
    workers: int,
    *,
    resume: bool = False,
    start: Callable[[list[Block]], object] = bool,
    replace: Callable[[], object] = bool,
    report: Callable[[str, float, float], object] = lambda *_: None,
) -> dict[str, Made]:
    """Writes the shards into `folder`, and into its folder `dev` those held out.

    Args:
        corpus: The text.
        settings: Of the examples.
        tokenizer: For the ids.
        folder: Where to.
        workers: Processes.
        resume: Whether to go on from what is there. What is there is used only with the same
            arguments, which the caller checks, the same tokenizer and the same text.
        start: Called with the first blocks of the text (on resuming, perhaps with none) before
            anything is written, and after what a small corpus has wrong has been found; it makes
            the folder, or calls `begin_replacing`.
        replace: Called after that, once all text has been read and found good: it removes the
            data that are to be replaced, and leaves what ends in `.unfinished`.
        report: Called with what's being done, how much of it is done, and how much there is.

    Returns:
        What has been made of each split.

    Raises:
        InputError: from reading; from pairing, naming inputs and split; on resuming, the text
            or the tokenizer has changed.
    """
    if resume:
        check_tokenizer(tokenizer, folder / BLOCKS)
    with Workers(workers, tokenizer, settings, corpus.inputs) as pool:
        plan = read_plan(folder / BLOCKS) if resume else None
        if plan is None:
            plan = _make_blocks(corpus, settings, tokenizer, folder, pool, start, report)
        else:
            start([])
        if (folder / BLOCKS / REPLACES).exists():
            replace()
            (folder / BLOCKS / REPLACES).unlink()
        return write_shards(plan, folder, settings.seed, pool, report)


def _make_blocks(
    corpus: Corpus,
    settings: Settings,
    tokenizer: WordPiece,
    folder: pathlib.Path,
    pool: Workers,
    start: Callable[[list[Block]], object],
    report: Callable[[str, float, float], object],
) -> Plan:
    total = sum(source.num_bytes for source in corpus.sources)
    keep = DocumentFilter(settings)
    read = [0]

    def count_bytes(count: int) -> None:
        read[0] += count
        report("Pairing", read[0], total)

    blocks = creation.read_blocks(corpus, keep, count_bytes)
    first = list(itertools.islice(blocks, 3))
    # All of a small corpus, or else enough to see whether anything is right.
    here = first if len(first) < 3 else first[:1]
    made = [(block, *pool.make_block(block)) for block in here]
    start(first)
    (folder / BLOCKS).mkdir(exist_ok=True)
    write_json(folder / BLOCKS / TOKENIZER, _describe(tokenizer))
    for block, examples, counts in made:
        if not is_written(block, folder / BLOCKS):
            write_block(block, examples, counts, folder / BLOCKS)
    others = itertools.chain(first[len(here) :], blocks)
    names = [block.name for block in here] + pool.write_blocks(others, folder / BLOCKS)
    return make_plan(names, keep.counts, folder / BLOCKS)


class Workers:
    """This process, or several, which are started when there are blocks to share out.

    Each of several imports this package anew, which takes seconds.
    """

    def __init__(self, count: int, tokenizer: WordPiece, settings: Settings, inputs: Sequence[str]):
        self._count = count
        self._arguments = tokenizer.vocabulary, tokenizer.get_config(), settings, inputs
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None
        self.make_block = BlockMaker(tokenizer, settings, inputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def start(self) -> None:
        """Starts the processes, if there are to be several and none runs yet."""
        if self._count > 1 and self._executor is None:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._count,
                mp_context=multiprocessing.get_context("spawn"),  # TensorFlow survives no fork
                initializer=_start_worker,
                initargs=self._arguments,
            )

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yields the results in any order, with a few tasks in memory at a time."""
        if self._executor is None:
            yield from map(function, tasks)
            return
        pending: set[concurrent.futures.Future[Result]] = set()
        for task in tasks:
            pending.add(self._executor.submit(function, task))
            if len(pending) > self._count:
                done, pending = concurrent.futures.wait(
                    pending, return_when=concurrent.futures.FIRST_COMPLETED
                )
                yield from (future.result() for future in done)
        for future in concurrent.futures.as_completed(pending):
            yield future.result()

    def write_blocks(self, blocks: Iterable[Block], folder: pathlib.Path) -> list[str]:
        """Makes and writes the blocks that aren't there; returns the names of all."""
        names: list[str] = []
        tasks = self._not_written(blocks, folder, names)
        first = next(tasks, None)
        if first is None:
            return names
        self.start()
        write = self._write_block if self._executor is None else _write_block
        for _ in self.map(functools.partial(write, folder=folder), itertools.chain([first], tasks)):
            pass
        return names

    def _not_written(
        self, blocks: Iterable[Block], folder: pathlib.Path, names: list[str]
    ) -> Iterator[Block]:
        for block in blocks:
            names.append(block.name)
            if not is_written(block, folder):
                yield block

    def _write_block(self, block: Block, folder: pathlib.Path) -> None:
        write_block(block, *self.make_block(block), folder)


_make_block: BlockMaker  # one in each worker process


def _start_worker(vocabulary: list[str], config: dict[str, Any], *of_maker: Any) -> None:
    global _make_block
    _make_block = BlockMaker(WordPiece(vocabulary, **config), *of_maker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # a search for garbage needn't look through TensorFlow


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when it has been killed, too
        os._exit(1)


def _write_block(block: Block, folder: pathlib.Path) -> None:
    write_block(block, *_make_block(block), folder)


def begin_replacing(folder: pathlib.Path) -> None:
    """Makes room for blocks beside older data, which stay until `create` says `replace`."""
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)
    (folder / BLOCKS).mkdir()
    (folder / BLOCKS / REPLACES).touch()


def check_tokenizer(tokenizer: WordPiece, folder: pathlib.Path) -> None:
    """Refuses blocks that hold another tokenizer's ids."""
    path = folder / TOKENIZER
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != _describe(tokenizer):
        raise InputError(
            f"{folder.parent} was begun with another vocabulary or casing: give those, or make the "
            "data again with --overwrite."
        )


def _describe(tokenizer: WordPiece) -> dict[str, Any]:
    return {"vocabulary_hash": tokenizer.vocabulary_hash} | tokenizer.get_config()


def is_written(block: Block, folder: pathlib.Path) -> bool:
    """Whether a block is there whole.

    Raises:
        InputError: it was made of other text.
    """
    path = folder / f"{block.name}.json"
    if not path.exists():
        return False
    if json.loads(path.read_text(encoding="utf-8"))["hash"] != block.hash():
        raise InputError(
            f"{folder.parent} was begun on other text than the input holds now (block "
            f"{block.name}): make the data again with --overwrite."
        )
    return True


def write_block(
    block: Block, made: list[bytes], counts: collections.Counter[str], folder: pathlib.Path
) -> None:
    """Writes what has been made of a block: where each record ends, the records, the counts."""
    ends = np.cumsum([0, *map(len, made)], dtype="<i8")
    # A worker whose parent was killed may be writing the same still.
    unfinished = folder / f"{block.name}.{os.getpid()}.unfinished"
    with open(unfinished, "wb") as file:
        file.write(ends.tobytes())
        file.writelines(made)
    os.replace(unfinished, folder / f"{block.name}.records")
    write_json(unfinished, {"hash": block.hash(), "counts": counts})
    os.replace(unfinished, folder / f"{block.name}.json")


def read_slice(path: pathlib.Path, num_records: int, start: int, end: int) -> list[bytes]:
    """The records from `start` to `end` of a block."""
    with open(path, "rb") as file:
        file.seek(8 * start)
        ends = np.fromfile(file, "<i8", end - start + 1).tolist()
        file.seek(8 * (num_records + 1) + ends[0])
        data = memoryview(file.read(ends[-1] - ends[0]))
    cuts = [cut - ends[0] for cut in ends]
    return [bytes(data[i:j]) for i, j in itertools.pairwise(cuts)]


def make_plan(names: Iterable[str], left_out: dict[str, int], folder: pathlib.Path) -> Plan:
    """Sums up the blocks of all splits; with the plan's file, the first pass is over."""
    plan: Plan = {"blocks": {}, "counts": {}}
    for name in sorted(names):
        split = name.split("-")[0]
        counts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["counts"]
        plan["blocks"].setdefault(split, []).append((name, counts["examples"]))
        plan["counts"].setdefault(split, collections.Counter()).update(counts)
    plan["counts"]["train"].update(left_out)
    write_json(folder / PLAN, plan)
    return plan


def read_plan(folder: pathlib.Path) -> Plan | None:
    """The plan, or None where the first pass isn't over."""
    path = folder / PLAN
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_shards(
    plan: Plan,
    folder: pathlib.Path,
    seed: int,
    pool: Workers,
    report: Callable[[str, float, float], object],
) -> dict[str, Made]:
    """Writes the shards that aren't there; what the arguments are, `create` says."""
    names = {
        split: records.shard_names(creation.num_shards(counts["examples"]))
        for split, counts in plan["counts"].items()
    }
    lacking = []
    for split in names:
        split_folder(folder, split).mkdir(exist_ok=True)
        for shard, name in enumerate(names[split]):
            if not (split_folder(folder, split) / name).exists():
                lacking.append((split, shard, plan["blocks"][split], names[split]))
    # On resuming, no process may run yet; what one has made of two blocks is soon written by one.
    if len(lacking) > 1 and sum(map(len, plan["blocks"].values())) > 2:
        pool.start()
    total = sum(map(len, names.values()))
    report("Writing", total - len(lacking), total)
    write = functools.partial(_write_shard, folder=folder, seed=seed)
    for done, _ in enumerate(pool.map(write, lacking), start=total - len(lacking) + 1):
        report("Writing", done, total)
    return {
        split: Made(
            counts,
            {name: (split_folder(folder, split) / name).stat().st_size for name in names[split]},
        )
        for split, counts in plan["counts"].items()
    }


def split_folder(folder: pathlib.Path, split: str) -> pathlib.Path:
    """Where the shards of a split are."""
    return folder / "dev" if split == "dev" else folder


def _write_shard(
    task: tuple[str, int, list[tuple[str, int]], list[str]], folder: pathlib.Path, seed: int
) -> None:
    split, shard, blocks, names = task
    taken: list[bytes] = []
    for name, size in blocks:
        start, end = creation.shard_slice(size, shard, len(names))
        taken += read_slice(folder / BLOCKS / f"{name}.records", size, start, end)
    made = creation.in_shard_order(taken, split, shard, seed)
    records.write_shard(made, split_folder(folder, split) / names[shard])


def is_complete(folder: pathlib.Path) -> bool:
    """Whether there's nothing left to do."""
    return (folder / records.MANIFEST).exists() and not (folder / BLOCKS).exists()


def clear_up(folder: pathlib.Path) -> None:
    """Removes what the shards were made of, and what a killed run left."""
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)
    for rest in folder.rglob("*.unfinished"):
        rest.unlink()
