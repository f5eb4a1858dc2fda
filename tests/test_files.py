"""Files that nobody ever finds half of, and folders that are numbered."""

from __future__ import annotations

import os

import pytest

from keras_bert import files


def test_numbers_go_on(tmp_path):
    for name in ("2", "10", "mine", ".11"):
        (tmp_path / name).mkdir()
    with files.unfinished_in(tmp_path) as unfinished:
        (unfinished / "model").write_text("new", encoding="utf-8")
        assert files.as_next_number(unfinished) == tmp_path / "11"
    assert sorted(os.listdir(tmp_path)) == [".11", "10", "11", "2", "mine"]
    assert (tmp_path / "11" / "model").read_text(encoding="utf-8") == "new"
    with files.unfinished_in(tmp_path / "a" / "b") as unfinished:
        assert files.as_next_number(unfinished) == tmp_path / "a" / "b" / "1"


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_number_that_appears_meanwhile_stays(tmp_path, monkeypatch, is_folder):
    numbers, mine = files.numbers, tmp_path / "1" / "mine" if is_folder else tmp_path / "1"

    def too_early(folder):
        found = numbers(folder)
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine", encoding="utf-8")
        return found

    monkeypatch.setattr(files, "numbers", too_early)
    with files.unfinished_in(tmp_path) as unfinished:
        assert files.as_next_number(unfinished) == tmp_path / "2"
    assert mine.read_text(encoding="utf-8") == "mine"
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_what_is_unfinished_goes(tmp_path):
    dead = tmp_path / ".next.999999999.abcd.unfinished"
    other = tmp_path / f".next.{os.getppid()}.abcd.unfinished"  # of a process that runs
    for folder in (dead, other):
        folder.mkdir()
        (folder / "part").write_text("part", encoding="utf-8")
    with files.unfinished_in(tmp_path) as first, files.unfinished_in(tmp_path) as second:
        assert sorted(os.listdir(tmp_path)) == sorted([other.name, first.name, second.name])

    def interrupted():
        with files.unfinished_in(tmp_path) as unfinished:
            (unfinished / "part").write_text("part", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == [other.name]
