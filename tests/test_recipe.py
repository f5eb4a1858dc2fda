"""The run folder: what may be replaced, and what never."""

from __future__ import annotations

import dataclasses
import json

import pytest

from keras_bert.errors import InputError
from keras_bert.recipe import check_output_dir, start_run


@dataclasses.dataclass(frozen=True)
class Args:
    output_dir: str
    train_file: str = ""
    input: tuple[str, ...] = ()


def test_new_folder_holds_the_arguments(tmp_path):
    args = Args(str(tmp_path / "a" / "run"), "x.tsv", ("a.txt",))
    folder = start_run(args.output_dir, args)
    stored = json.loads((folder / "args.json").read_text(encoding="utf-8"))
    assert stored == {"output_dir": args.output_dir, "train_file": "x.tsv", "input": ["a.txt"]}


def test_overwrite_removes_the_old_run(tmp_path):
    args = Args(str(tmp_path / "run"))
    folder = start_run(args.output_dir, args)
    (folder / "old.txt").touch()
    with pytest.raises(InputError, match="isn't empty"):
        start_run(args.output_dir, args)
    assert (start_run(args.output_dir, args, resume=True) / "old.txt").exists()
    assert not (start_run(args.output_dir, args, overwrite=True) / "old.txt").exists()


def test_overwrite_keeps_what_no_recipe_made(tmp_path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(InputError, match="no recipe made it"):
        check_output_dir(tmp_path, overwrite=True)
    with pytest.raises(InputError, match="is a file"):
        check_output_dir(tmp_path / "letter.txt")
    with pytest.raises(InputError, match="Choose one"):
        check_output_dir(tmp_path, overwrite=True, resume=True)


@pytest.mark.parametrize("field", ["train_file", "input"])
def test_overwrite_keeps_what_the_command_reads(tmp_path, field):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    data = folder / "data.tsv"
    data.touch()
    value = (str(data),) if field == "input" else str(data)
    args = Args(str(folder), **{field: value})
    with pytest.raises(InputError, match=r"would remove .*data\.tsv"):
        start_run(folder, args, overwrite=True)
    assert data.exists()
