"""What every recipe does around its own lines: arguments in, a run folder, one JSON line out."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
import os
import pathlib
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

from keras_bert import remote
from keras_bert.errors import InputError
from keras_bert.files import write_json

# What recipes leave in their folders, all that --overwrite may remove: files, and folders with
# their files. A folder of the user's own may share a name with ours.
FILES = (
    *("args.json", "manifest.json", "metrics.json", "history.csv", "report.html"),
    *("predictions.tsv", "predictions.json"),
    *("predictions.conll", "answers.json", "nbest.json", "null_odds.json"),
    *("examples-*.tfrecord", "vocab.txt", "*.tflite"),
)
FOLDERS = {
    "logs": ("*events.out.tfevents.*",),
    "checkpoints": ("update-*/*", "best.json", "non-finite/*"),
    "preset": ("config.json", "vocab.txt", "weights.h5"),
    "runs": ("*/history.csv", "*/logs/*events.out.tfevents.*"),
    "submission": ("*.tsv", "*_predict.json"),
    "dev": ("examples-*.tfrecord", "manifest.json", "vocab.txt", "static/masked-*.tfrecord"),
    "static": ("masked-*.tfrecord",),
}
STAGES = ("records", "pretraining", "classifier", "export")  # runs inside a quick start's
STAGE_FILES = ("corpus.txt", "train.tsv", "dev.tsv")
EXPORT = "assets.extra/keras_bert.json"  # what a version of an export has
# Arguments that leave a run's results as they are: it may be resumed with others.
WHERE_AND_HOW = (*("output_dir", "resume", "overwrite", "keep", "recompute", "strategy", "tpu"),)


def check_training_numbers(args: Any) -> None:
    """Refuses numbers that no training can have.

    Raises:
        InputError: naming the flag and its value.
    """
    for name, least, most in (
        ("batch_size", 1, math.inf),
        ("accumulate", 1, math.inf),
        ("steps_per_execution", 1, math.inf),
        ("learning_rate", 0, math.inf),
        ("weight_decay", 0, math.inf),
        ("warmup_ratio", 0, 1),
        ("seed", 0, 2**32 - 1),
    ):
        value = getattr(args, name)
        if not least <= value <= most or value == math.inf:
            between = f"from {least} to {most}" if most < math.inf else f"at least {least}"
            between += "" if math.isfinite(value) else ", and finite"
            raise InputError(f"--{name.replace('_', '-')} must be {between}. Received: {value}.")


def on_this_host(args: Any) -> Any:
    """The arguments, with an output folder of its own for each host but the first.

    Hosts that train together (`--strategy multiworker`) run one command and may share a disk.
    """
    if args.strategy != "multiworker":
        return args
    try:
        described = json.loads(os.environ.get("TF_CONFIG", ""))
        kind, index = described["task"]["type"], int(described["task"]["index"])
        has_chief = "chief" in described["cluster"]
    except (ValueError, KeyError, TypeError):
        return args  # `training.strategy` will say what's wrong
    if kind == "chief" or (index == 0 and not has_chief):
        return args
    return dataclasses.replace(args, output_dir=f"{args.output_dir}-{kind}{index}")


def run(main: Callable[[Any], dict[str, Any]], args_class: type) -> None:
    """Parses the command line into `args_class`, calls `main`, prints its metrics as JSON.

    Bad input (`InputError`, or a file that can't be opened) is printed as one sentence and
    ends the process with exit code 2. Any other exception is a fault of the code and keeps
    its traceback.
    """
    import tyro

    args: Any = tyro.cli(args_class)
    warnings.showwarning = _warn  # type: ignore[assignment]
    try:
        metrics = main(args)
        remote.copy_out()
    except InputError as error:
        sys.exit(_complain(str(error)))
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(_complain(f"{error.filename}: {error.strerror}. Check the path."))
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit:
        remote.copy_out()  # a run that stopped on request, or at a loss that isn't finite
        raise
    print(json.dumps(metrics, ensure_ascii=False))


def command() -> str:
    """The command line of this process, to repeat a run by."""
    return shlex.join(["python", *sys.argv])


def _warn(message: Any, *_: Any) -> None:
    """A sentence, without the line of code that it comes from."""
    print(f"warning: {message}", file=sys.stderr)


def _complain(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def check_output_dir(
    output_dir: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False
) -> pathlib.Path:
    """Refuses an output folder that a run may not use; writes nothing.

    A recipe calls this first, before it spends time on its data.

    Raises:
        InputError: the path is a file; the folder isn't empty and neither `resume` nor
            `overwrite` is given; or `overwrite` would remove a folder that no recipe made.
    """
    if overwrite and resume:
        raise InputError("Choose one of --resume and --overwrite.")
    folder = local_folder(output_dir)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: --output-dir must name a folder.")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    names = [name for name in names if not name.endswith(".unfinished")]
    if not names:
        return folder
    if not (overwrite or resume):
        raise InputError(
            f"{folder} isn't empty: pass --overwrite to replace it, another --output-dir, "
            "or --resume where the recipe has it."
        )
    stored = _stored_args(folder / "args.json")
    if "args.json" not in names or (overwrite and "output_dir" not in stored):
        raise InputError(
            f"{folder} holds no args.json of a recipe, so no recipe made it: choose another "
            "--output-dir."
        )
    if overwrite and (foreign := _foreign(folder, "pretraining_steps" in stored)):
        raise InputError(
            f"{folder} holds {foreign.relative_to(folder)}, which no recipe made: move it away, "
            "or choose another --output-dir."
        )
    return folder


def _stored_args(path: pathlib.Path) -> dict[str, Any]:
    """The arguments that a recipe wrote; {}: none that can be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _foreign(folder: pathlib.Path, is_quickstart: bool = False) -> pathlib.Path | None:
    """The first file or folder that no recipe made, or None."""
    files = FILES + STAGE_FILES if is_quickstart else FILES
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.endswith(".unfinished"):
            continue
        if path.is_symlink() or not path.is_dir():
            # Of a link, such as to a larger disk, what it leads to stays.
            is_link = path.is_symlink() and name in FOLDERS
            if not is_link and not any(fnmatch.fnmatch(name, ours) for ours in files):
                return path
        elif name in FOLDERS:
            for inner in sorted(path.rglob("*")):
                inside = inner.relative_to(path).as_posix()
                if (inner.is_dir() and not inner.is_symlink()) or ".unfinished" in inside:
                    continue
                if not any(fnmatch.fnmatch(inside, ours) for ours in FOLDERS[name]):
                    return inner
        elif name in STAGES and is_quickstart:
            if found := _foreign(path):
                return found
        elif not (name.isdecimal() and (path / EXPORT).is_file()):
            return path
    return None


def start_run(
    output_dir: str | os.PathLike[str], args: Any, *, overwrite: bool = False, resume: bool = False
) -> pathlib.Path:
    """Makes the run folder and writes `args.json`; with `overwrite`, removes the old run.

    What ends in `.unfinished` stays: it's no part of a run that is there.

    Called once the input has been checked, so that a refused command changes nothing.

    Raises:
        InputError: as `check_output_dir`; `overwrite` would remove a path that one of the
            arguments names; or `resume` finds the run of another command.
    """
    folder = check_output_dir(output_dir, overwrite=overwrite, resume=resume)
    if overwrite and folder.is_dir():
        keep_what_is_read(folder, args)
        # Its contents: the folder itself may be a link, or the current one.
        for path in folder.iterdir():
            if path.name.endswith(".unfinished"):
                continue  # of the run that replaces this one
            if path.name == "args.json":
                continue  # replaced below: a kill before that leaves a folder that's still a run's
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if resume and (folder / "args.json").is_file():
        _check_same_run(folder / "args.json", args)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "args.json", dataclasses.asdict(args))
    return folder


def local_folder(output_dir: str | os.PathLike[str]) -> pathlib.Path:
    """The run folder itself, or the working copy of one on a store such as `gs://`."""
    if remote.is_remote(output_dir):
        return remote.working_copy(os.fspath(output_dir))
    return pathlib.Path(output_dir)


def keep_what_is_read(folder: pathlib.Path, args: Any) -> None:
    """Refuses to remove a folder that holds what the command is about to read."""
    for name, value in dataclasses.asdict(args).items():
        for path in value if isinstance(value, tuple) else (value,):
            if name == "output_dir" or not isinstance(path, str) or not os.path.exists(path):
                continue
            if path and pathlib.Path(path).resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"--overwrite would remove {path}, which the command reads: choose another "
                    "--output-dir."
                )


def _check_same_run(path: pathlib.Path, args: Any) -> None:
    """Refuses to go on with a run under other settings than it began with."""
    try:
        stored = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged: restore it, or choose --overwrite.") from error
    # As JSON, which knows no tuples.
    now = json.loads(json.dumps(dataclasses.asdict(args)))
    if not now.keys() <= stored.keys():
        raise InputError(
            f"{path.parent} holds the run of another recipe, or of another version of it: choose "
            "another --output-dir."
        )
    for name in now.keys() - set(WHERE_AND_HOW):
        if now[name] != stored.get(name):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{path.parent} was begun with {flag} {stored.get(name)}. Received: {now[name]}. "
                "Resume it with the same command, or choose another --output-dir."
            )
