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
    (folder / "preset").mkdir()
    with pytest.raises(InputError, match="isn't empty"):
        start_run(args.output_dir, args)
    assert (start_run(args.output_dir, args, resume=True) / "preset").exists()
    assert not (start_run(args.output_dir, args, overwrite=True) / "preset").exists()
    (folder / "thesis.txt").touch()
    with pytest.raises(InputError, match=r"holds thesis\.txt"):
        start_run(args.output_dir, args, overwrite=True)


def test_overwrite_of_the_current_folder_and_of_a_link(tmp_path, monkeypatch):
    start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    for output_dir in (".", str(tmp_path / "link")):
        start_run(output_dir, Args(output_dir), overwrite=True)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["args.json"]


def test_a_kill_before_the_first_file_leaves_the_folder_usable(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".args.json.unfinished").touch()
    start_run(tmp_path / "run", Args(str(tmp_path / "run")))


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_damaged_arguments(tmp_path, text):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    (folder / "args.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"args\.json is damaged"):
        start_run(folder, Args(str(folder)), resume=True)


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
    data = folder / "vocab.txt"
    data.touch()
    value = (str(data),) if field == "input" else str(data)
    args = Args(str(folder), **{field: value})
    with pytest.raises(InputError, match=r"would remove .*vocab\.txt"):
        start_run(folder, args, overwrite=True)
    assert data.exists()


def test_the_folder_of_another_recipe_is_not_resumed(tmp_path):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    (folder / "args.json").write_text('{"output_dir": "run", "temperature": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="holds the run of another recipe"):
        start_run(folder, Args(str(folder)), resume=True)


@pytest.mark.parametrize(
    "name",
    ["2024/letter.txt", "1/notes", "runs/thesis.txt", "logs/mine.log", "preset/photo.png",
     "checkpoints/a/model", "submission/letter.doc", "records/train.txt", "train.tsv"],
)  # fmt: skip
def test_overwrite_keeps_what_only_has_a_name_of_ours(tmp_path, name):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    with pytest.raises(InputError, match=r"holds .*, which no recipe made"):
        start_run(folder, Args(str(folder)), overwrite=True)
    assert (folder / name).exists()


def test_overwrite_removes_all_that_recipes_make(tmp_path):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    for name in (
        *("1/assets.extra/keras_bert.json", "1/saved_model.pb", "logs/train/events.out.tfevents.1"),
        *("runs/seed-1/history.csv", "runs/seed-1/logs/train/events.out.tfevents.1.v2"),
        *("preset/weights.h5", "checkpoints/update-00000001/state.json", "submission/RTE.tsv"),
        *("dev/examples-00000-of-00001.tfrecord", "model.tflite"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    start_run(folder, Args(str(folder)), overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["args.json"]


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"lr": 1}'])
def test_an_args_json_of_others(tmp_path, text):
    (tmp_path / "args.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="no recipe made it"):
        check_output_dir(tmp_path, overwrite=True)


def test_a_kill_while_the_old_run_is_removed(tmp_path, monkeypatch):
    folder = start_run(tmp_path / "run", Args(str(tmp_path / "run")))
    (folder / "preset").mkdir()

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            start_run(folder, Args(str(folder)), overwrite=True)
    assert (folder / "args.json").is_file()
    start_run(folder, Args(str(folder)), overwrite=True)
