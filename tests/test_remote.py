"""Object stores, for which fsspec's in-memory one stands in: no bucket can be reached here."""

from __future__ import annotations

import dataclasses
import json

import pytest

import keras_bert
from keras_bert import recipe, remote
from keras_bert.errors import InputError
from keras_bert.files import write_json

fsspec = pytest.importorskip("fsspec", reason="pip install fsspec: paths such as gs:// need it")


@pytest.fixture
def store(request):
    memory = fsspec.filesystem("memory")
    yield f"memory://{request.node.name}", memory
    memory.store.clear()
    remote._sent.clear()


def test_a_local_path_stays_as_it_is():
    assert remote.local("data/a.txt") == "data/a.txt"
    assert not remote.is_remote("hf://google-bert/bert-base-uncased")


def test_files_and_folders_come_in(store):
    url, memory = store
    memory.pipe(f"/{url[9:]}/run/preset/vocab.txt", b"[PAD]\n")
    with open(remote.local(f"{url}/run/preset/vocab.txt"), "rb") as file:
        assert file.read() == b"[PAD]\n"
    with open(f"{remote.local(f'{url}/run')}/preset/vocab.txt", "rb") as file:
        assert file.read() == b"[PAD]\n"
    with pytest.raises(InputError, match="absent isn't there"):
        remote.local(f"{url}/absent")


def test_an_unknown_store_is_refused_with_its_name():
    with pytest.raises(InputError, match="nosuchstore://bucket"):
        remote.local("nosuchstore://bucket/a")


def test_a_working_copy_goes_out_and_comes_back(store):
    url, memory = store
    folder = remote.working_copy(f"{url}/run")
    (folder / "checkpoints" / "update-1").mkdir(parents=True)
    (folder / "checkpoints" / "update-1" / "complete").touch()
    (folder / "checkpoints" / "update-1" / "state.json").write_text("{}")
    (folder / "checkpoints" / "update-2.unfinished").mkdir()
    (folder / "checkpoints" / "update-2.unfinished" / "state.json").write_text("{}")
    sent = []
    put_file = memory.put_file
    memory.put_file = lambda path, to: (sent.append(to.rsplit("/", 1)[-1]), put_file(path, to))
    try:
        remote.copy_out()
        remote.copy_out()  # nothing has changed: nothing is sent
    finally:
        del memory.put_file
    assert sent == ["state.json", "complete"]

    remote.working_copy.cache_clear()
    again = remote.working_copy(f"{url}/run")
    assert (again / "checkpoints" / "update-1" / "complete").exists()
    assert not list(again.rglob("*.unfinished"))


def test_what_is_removed_goes_in_the_right_order(store):
    url, memory = store
    folder = remote.working_copy(f"{url}/run")
    for name in ("complete", "state.json", "weights"):
        (folder / name).write_text(name)
    remote.copy_out()
    for name in ("complete", "state.json"):
        (folder / name).unlink()
    removed = []
    rm_file = memory.rm_file
    memory.rm_file = lambda path: (removed.append(path.rsplit("/", 1)[-1]), rm_file(path))
    try:
        remote.copy_out()
    finally:
        del memory.rm_file
    assert removed == ["complete", "state.json"]
    assert [path.rsplit("/", 1)[-1] for path in memory.find(f"{url}/run")] == ["weights"]


def test_a_preset_is_loaded_from_a_store(store, tmp_path):
    config = keras_bert.BertConfig.of_size("tiny", vocabulary_size=7, num_layers=1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    tokenizer = keras_bert.WordPiece(words)
    encoder = keras_bert.bert(config)
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), tmp_path / "preset")
    url, memory = store
    memory.put(str(tmp_path / "preset"), f"/{url[9:]}/preset", recursive=True)
    assert keras_bert.load(f"{url}/preset").tokenizer.vocabulary == words


def test_a_run_folder_on_a_store(store, tmp_path, monkeypatch, capsys):
    """Written through a working copy; refused where there's a run, unless it may be replaced."""

    @dataclasses.dataclass(frozen=True)
    class Args:
        output_dir: str
        overwrite: bool = False

    def main(args):
        folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
        write_json(folder / "metrics.json", {"accuracy": 0.5})
        return {"accuracy": 0.5}

    url, memory = store

    def run(*more):
        remote.working_copy.cache_clear()
        remote._sent.clear()
        monkeypatch.setattr("sys.argv", ["recipe.py", "--output-dir", f"{url}/run", *more])
        recipe.run(main, Args)

    run()
    assert json.loads(memory.cat(f"{url}/run/metrics.json")) == {"accuracy": 0.5}
    memory.pipe(f"{url}/run/history.csv", b"old")
    with pytest.raises(SystemExit, match="2"):
        run()
    assert "isn't empty" in capsys.readouterr().err
    run("--overwrite")
    assert not memory.exists(f"{url}/run/history.csv")
