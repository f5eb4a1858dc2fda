r"""How fast pretraining examples are made, and in how much memory; beside Google's own script.

    python benchmarks/data_creation.py --text en_state_union_1945_1962.txt --vocabulary vocab.txt \
        --megabytes 50 --workers 1 2 --repeats 3 --original google_bert/create_pretraining_data.py

The text (documents between blank lines) is repeated to the size that's asked for and made into
examples of 128 tokens by the recipe, in processes of its own. Of the CPU seconds of all processes
and of the time, those that the same command needs for the text's first documents are subtracted:
imports. Memory is the peak of the sum over processes of what each holds, less what `import
tensorflow, tensorflow_text` takes in each.

Google's script (google-research/bert, with `tokenization.py` beside it) runs under TensorFlow's
compat.v1 on the text once, a sentence a line, at a dupe factor of 5; its CPU seconds are
those of its `main`.

Measured on two cores, examples a core-second: Google's script 2,746 to 2,824 (8,181 examples in
2.9 CPU seconds); ours at the same dupe factor of 5, 50 MB, 51,597 (18.6 x; one run, beside other
work); at a dupe factor of 1, where each pass pays for its own tokenization, 24,200 to 24,600. With
the machine to itself, 200 MB took 16.9 s by one process and 8.9 s by two (1.9 x; medians of
three), and 17.0 CPU seconds either way. Memory of the three processes together: 2.37 GB on 100 MB
and 2.40 GB on 1 GB, less than the imports of tensorflow and tensorflow_text (2.52 GB).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import rich.console
import rich.table
import tyro

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "create_pretraining_data.py"
IMPORTS = "import tensorflow, tensorflow_text, time; print(flush=True); time.sleep(3)"
ORIGINAL = """
import sys, time
import tensorflow.compat.v1 as tf
sys.modules["tensorflow"] = tf
import create_pretraining_data as original
tf.logging.set_verbosity(tf.logging.ERROR)
original.FLAGS(["", *sys.argv[1:]])
started = time.process_time()
original.main(None)
print(time.process_time() - started)
"""


@dataclasses.dataclass(frozen=True)
class Args:
    """How fast pretraining examples are made, and in how much memory."""

    text: str
    """A text file, documents between blank lines."""
    vocabulary: str
    """vocab.txt, lower-cased."""
    megabytes: tuple[int, ...] = (50,)
    """Sizes to which the text is repeated."""
    workers: tuple[int, ...] = (1,)
    """Numbers of processes."""
    duplicates: tuple[int, ...] = (1,)
    """Dupe factors."""
    repeats: int = 1
    """Runs of each; medians are shown."""
    original: str | None = None
    """Google's create_pretraining_data.py."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run of the recipe took."""

    examples: int
    cpu_seconds: float
    seconds: float
    megabytes: float
    processes: int


def main(args: Args) -> None:
    console = rich.console.Console()
    text = pathlib.Path(args.text).read_text(encoding="utf-8").rstrip("\n")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.original is not None:
            examples, seconds = time_original(args, text, folder)
            console.print(
                f"Google's script: {examples:,} examples in {seconds:.2f} CPU seconds, "
                f"{examples / seconds:,.0f} a core-second"
            )
        imports = measure_imports()
        table = rich.table.Table(
            *("MB", "workers", "duplicates", "examples", "CPU s", "s", "examples / core-s"),
            *("MB of memory", "less imports"),
            title=f"imports: {imports:.0f} MB a process",
        )
        for megabytes in args.megabytes:
            path = folder / f"{megabytes}.txt"
            copies = max(1, round(megabytes * 1e6 / len(text.encode("utf-8"))))
            path.write_text("\n\n".join([text] * copies) + "\n", encoding="utf-8")
            for workers in args.workers:
                for duplicates in args.duplicates:
                    command = [*("--workers", str(workers)), *("--duplicates", str(duplicates))]
                    row = measure(args, path, folder, command, imports)
                    table.add_row(str(megabytes), str(workers), str(duplicates), *row)
        console.print(table)


def measure(
    args: Args, path: pathlib.Path, folder: pathlib.Path, command: list[str], imports: float
) -> list[str]:
    """One row's figures: medians, with the time of imports subtracted."""
    beginning = first_megabytes(path, folder)
    starts, runs = (
        [run_recipe(text, args.vocabulary, folder, command) for _ in range(args.repeats)]
        for text in (beginning, path)
    )
    examples = runs[0].examples - starts[0].examples
    cpu = statistics.median(run.cpu_seconds for run in runs)
    cpu -= statistics.median(run.cpu_seconds for run in starts)
    seconds = statistics.median(run.seconds for run in runs)
    seconds -= statistics.median(run.seconds for run in starts)
    memory = statistics.median(run.megabytes for run in runs)
    beyond = statistics.median(run.megabytes - run.processes * imports for run in runs)
    return [
        *(f"{examples:,}", f"{cpu:.1f}", f"{seconds:.1f}", f"{examples / cpu:,.0f}"),
        *(f"{memory:,.0f}", f"{beyond:,.0f}"),
    ]


def first_megabytes(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Enough text for every worker to be started, as three blocks are made."""
    start = folder / "start.txt"
    with path.open("rb") as file:
        start.write_bytes(file.read(14_000_000).rsplit(b"\n\n", 1)[0] + b"\n")
    return start


def run_recipe(
    path: pathlib.Path, vocabulary: str, folder: pathlib.Path, command: list[str]
) -> Run:
    output = folder / "output"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    before, started = os.times(), time.perf_counter()
    with subprocess.Popen(  # noqa: S603
        [
            *(sys.executable, str(RECIPE), "--input", str(path), "--vocabulary", vocabulary),
            *("--output-dir", str(output), "--overwrite", *command),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        peak: list[tuple[float, int]] = [(0.0, 0)]
        most = int(command[1]) + (command[1] != "1")  # workers, and who hands out the work
        watch = threading.Thread(target=watch_memory, args=(process, most, peak))
        watch.start()
        printed = process.stdout.read() if process.stdout else ""
    watch.join()
    seconds, after = time.perf_counter() - started, os.times()
    if process.returncode:
        sys.exit(f"The recipe ended with code {process.returncode}.")
    examples = json.loads(printed.rstrip().rsplit("\n", 1)[-1])["examples"]
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return Run(examples, cpu, seconds, *peak[0])


def watch_memory(process: subprocess.Popen[str], most: int, peak: list[tuple[float, int]]) -> None:
    while process.poll() is None:
        family = descendants(process.pid)
        if len(family) <= most:  # one that's just being started shows its parent's memory
            peak[0] = max(peak[0], (sum(map(resident_megabytes, family)), len(family)))
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """A process and those it started, of which the ones that hold next to nothing don't count."""
    family = [pid]
    for parent in family:
        try:
            for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return [member for member in family if resident_megabytes(member) > 100]


def resident_megabytes(pid: int) -> float:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def measure_imports() -> float:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        if process.stdout:
            process.stdout.readline()
        megabytes = resident_megabytes(process.pid)
    return megabytes


def time_original(args: Args, text: str, folder: pathlib.Path) -> tuple[int, float]:
    """The examples that Google's script makes of the text, and its CPU seconds."""
    import tensorflow as tf

    from keras_bert.data.documents import split_sentences

    documents = (paragraphs.split("\n") for paragraphs in text.split("\n\n"))
    sentences = [
        "\n".join(sentence for text in document for sentence in split_sentences(text))
        for document in documents
    ]
    (folder / "sentences.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    output = folder / "original.tfrecord"
    printed = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-c", ORIGINAL, f"--input_file={folder / 'sentences.txt'}"),
            *(f"--output_file={output}", f"--vocab_file={args.vocabulary}"),
            *("--dupe_factor=5", "--max_seq_length=128", "--max_predictions_per_seq=20"),
        ],
        cwd=pathlib.Path(str(args.original)).resolve().parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    ).stdout
    examples = sum(1 for _ in tf.data.TFRecordDataset(str(output)))
    return examples, float(printed)


if __name__ == "__main__":
    main(tyro.cli(Args))
