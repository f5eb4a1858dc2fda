import gzip
import json

import pytest

from keras_bert.data.sources import Source, find_files, read_documents
from keras_bert.errors import InputError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read(path, *args):
    (file, size), *others = find_files(str(path))
    assert not others
    counted = []
    documents = list(read_documents(Source(file, size, *args), counted.append))
    assert sum(counted) == size
    return documents


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "no_suffix"])
def test_plain_text(tmp_path, name):
    path = write(tmp_path / name, "\ufeffa b\n\n\n\u200b\nc d\r\n e\u2028f \r\n\r\ng")
    assert read(path) == [["a b"], ["c d", "e\u2028f"], ["g"]]
    assert read(path, "file", True) == [["a b", "c d e\u2028f", "g"]]
    assert read(write(tmp_path / f"empty_{name}", "")) == []


def test_json_lines(tmp_path):
    rows = [{"text": "a\n\nb", "id": 1}, {"text": ""}, {"text": "c\u2028d\nΩ"}]
    text = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    for name in ("a.jsonl", "a.jsonl.gz", "AA/wiki_00", "a.ndjson"):
        assert read(write(tmp_path / name, text)) == [["a", "b"], ["c\u2028d", "Ω"]]
    for text in ('{"text": 1}', '{"text": "a"', '{} {"text": "a"}', '["text"]'):
        assert read(write(tmp_path / "a.txt", text)) == [[text]]


def test_wikiextractor(tmp_path):
    text = (
        '<doc id="12" url="u" title="Salt">\nSalt\n\nSalt &amp; water.\nMore.\n\n</doc>\n'
        '<doc id="13" url="u" title="None">\n</doc>\n<doc id="14">\nSea\n\nBlue.\n</doc>\n'
    )
    for name in ("AA/wiki_00", "AA/wiki_01.gz"):
        documents = read(write(tmp_path / name, text))
        assert documents == [["Salt", "Salt & water.", "More."], ["Sea", "Blue."]]
    for bad, message in [
        ("<doc id>\na\n", "ends without </doc>"),
        ("<doc id>\na\n<doc id>\n", "line 3: a document begins before"),
        ("<doc id>\na\n</doc>\nb\n", "line 4: is outside <doc>"),
    ]:
        with pytest.raises(InputError, match=f"wiki_02.*{message}"):
            read(write(tmp_path / "wiki_02", bad))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet isn't tested without pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def make(name, **columns):
        path = str(tmp_path / name)
        parquet.write_table(pyarrow.table(columns), path)
        return path

    assert (
        read(make("a.parquet", text=["a\nb", "c"] * 300, id=[0] * 600)) == [["a", "b"], ["c"]] * 300
    )
    with pytest.raises(InputError, match="has no column `text`"):
        read(make("b.parquet", words=["a"]))
    with pytest.raises(InputError, match=r"row 2: `text` isn't a string"):
        read(make("c.parquet", text=["a", None]))
    with pytest.raises(InputError, match="isn't a Parquet file"):
        read(write(tmp_path / "d.parquet", "text"))


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"a\.parquet needs pyarrow: run `pip install pyarrow`"):
        read(write(tmp_path / "a.parquet", "x"))


def test_folders_and_patterns(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a/3.txt", ".hidden/4.txt", "_SUCCESS", "b/.5.txt"):
        write(tmp_path / name, name)
    inside = [str(tmp_path / name) for name in ("a/3.txt", "b/1.txt", "b/2.txt")]
    assert [path for path, _ in find_files(str(tmp_path))] == inside
    assert [path for path, _ in find_files(f"{tmp_path}/b/*.txt")] == inside[1:]
    assert [path for path, _ in find_files(f"{tmp_path}/**/[13].txt")] == inside[:2]
    assert find_files(inside[0]) == [(inside[0], 7)]
    with pytest.raises(InputError, match=r"none\.txt isn't a file"):
        find_files("none.txt")
    with pytest.raises(InputError, match=r"none\*\.txt matches no file"):
        find_files("none*.txt")


def test_addresses():
    fsspec = pytest.importorskip("fsspec", reason="addresses aren't tested without fsspec")
    system = fsspec.filesystem("memory")
    for name, content in [("b.txt", b"c d"), ("a.jsonl.gz", gzip.compress(b'{"text": "e"}'))]:
        system.pipe(f"/sources/{name}", content)
    found = [path for path, _ in find_files("memory://sources")]
    assert found == ["memory:///sources/a.jsonl.gz", "memory:///sources/b.txt"]
    assert find_files("memory://sources/b*")[0][1] == 3
    assert [read(path) for path in found] == [[["e"]], [["c d"]]]
    for path in ("memory://sources/none", "memory://none/*.txt", "nonesuch://bucket/a"):
        with pytest.raises(InputError, match=path.replace("*", r"\*")):
            find_files(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\ncaf\xe9\n", r"a\.txt, line 2: byte 0xe9 isn't UTF-8"),
        ("a.txt.gz", b"fine\n\ncaf\xe9\n", r"a\.txt\.gz, line 3: byte 0xe9 isn't UTF-8"),
        ("a.txt", b"fine\nMZ\x00\x01\n", r"a\.txt, line 2: holds a NUL byte"),
        ("a.txt", "a\nb\n".encode("utf-16"), r"a\.txt, line 1: holds a NUL byte"),
        ("a.txt", b"\x89PNG\r\n", r"a\.txt, line 1: byte 0x89 isn't UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: isn't JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n["text"]\n', r"a\.jsonl, line 3: has no `text`"),
        ("a.jsonl", b'{"text": 1}\n', r"a\.jsonl, line 1: has no `text` that is a string"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / name, content))


def test_damaged_compression(tmp_path):
    whole = gzip.compress(b"".join(b"line %d\n" % i for i in range(10_000)))
    for content in (whole[: len(whole) // 2], b"no gzip", whole[:100] + b"\xff" * 50 + whole[150:]):
        (tmp_path / "a.gz").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.gz, after line \d+: damaged compression"):
            read(tmp_path / "a.gz")


def test_a_line_of_ten_megabytes(tmp_path):
    ((paragraph,),) = read(write(tmp_path / "a.txt", "word. " * 1_700_000))
    assert len(paragraph) > 10_000_000
