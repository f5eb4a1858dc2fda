"""Tables in the formats people have, and every way in which they may be broken."""

import json

import pytest

pytest.importorskip("tensorflow")

from keras_bert.data import benchmarks, tables
from keras_bert.data.pairs import check_choices, read_choices
from keras_bert.data.tables import Columns, LabelledText, read_labelled_texts
from keras_bert.errors import InputError


@pytest.fixture
def file(tmp_path):
    """Writes a file; bytes as they are."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def rows(path, *args, **options):
    return [(row.label, row.text) for row in read_labelled_texts(path, *args, **options)]


def refused(read, *args, **options):
    with pytest.raises(InputError) as caught:
        read(*args, **options)
    return str(caught.value)


def test_quotes_in_tsv_are_text(file):
    """CLS-01: a lone quote in a GLUE-like file swallows nothing."""
    path = file("a.tsv", 'label\ttext\n1\t"Open the door\n0\tsaid "no" twice\n1\tend"\n')
    assert rows(path) == [("1", '"Open the door'), ("0", 'said "no" twice'), ("1", 'end"')]


def test_csv(file):
    """Quotes, a comma and a line break in a cell, a BOM and CRLF."""
    content = b'\xef\xbb\xbftext,label\r\n"a, ""b""\r\nc",x\r\nplain,y\r\n\r\n'
    found = read_labelled_texts(file("a.csv", content))
    assert [(row.text, row.label, row.line) for row in found] == [
        ('a, "b"\r\nc', "x", 2),
        ("plain", "y", 4),
    ]


def test_json_lines(file):
    lines = [{"label": 1, "sentence": "a\u2028b", "id": 7}, {"sentence": "c", "label": 0, "id": 8}]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert read_labelled_texts(file("a.jsonl", text)) == [
        LabelledText("1", "a\u2028b", 1, None, "7"),
        LabelledText("0", "c", 2, None, "8"),
    ]


@pytest.mark.parametrize(
    "names",
    ["sentence1\tsentence2\tlabel", "premise\thypothesis\tgold_label", "question\tsentence\tlabel",
     "text\tPAIR\tlabel"],
)  # fmt: skip
def test_usual_names_of_pairs(file, names):
    columns = Columns(pair="pair") if "PAIR" in names else Columns()
    path = file("a.tsv", f"index\t{names}\n5\tone\ttwo\tyes\n6\tthree\tfour\t-\n")
    first = LabelledText("yes", "one", 2, "two", "5")
    with pytest.warns(UserWarning, match="left out 1 rows labelled '-', the first in line 3"):
        assert read_labelled_texts(path, columns, is_pair=True) == [first]
    assert read_labelled_texts(path, columns, is_pair=True, needs_labels=False) == [
        first, LabelledText(None, "three", 3, "four", "6"),
    ]  # fmt: skip


def test_a_class_may_be_a_dash(file):
    assert rows(file("a.tsv", "label\ttext\n-\tone\n+\ttwo\n")) == [("-", "one"), ("+", "two")]


def test_files_without_names(file):
    assert rows(file("a.tsv", "x\tone\r\ny\ttwo\n\n")) == [("x", "one"), ("y", "two")]
    [row] = read_labelled_texts(file("b.tsv", "x\tone\ttwo"), is_pair=True)
    assert (row.label, row.text, row.pair) == ("x", "one", "two")
    cola = file("c.tsv", "gj04\t1\t\tOur friends.\ngj04\t0\t*\tThem friends.\n")
    assert rows(cola, Columns("4", "", "2")) == [("1", "Our friends."), ("0", "Them friends.")]
    assert rows(file("d.tsv", "one\ntwo\n"), needs_labels=False) == [(None, "one"), (None, "two")]


def test_labels_of_other_kinds(file):
    several = file("a.csv", 'text,labels\none,"b, a"\ntwo,\n')
    assert rows(several, kind="labels") == [(("b", "a"), "one"), ((), "two")]
    listed = file("a.jsonl", '{"text": "one", "labels": ["x", "y"]}')
    assert rows(listed, kind="labels") == [(("x", "y"), "one")]
    numbers = file("b.tsv", "score\ttext\n3.5\tone\n-1e2\ttwo\n")
    assert rows(numbers, kind="regression") == [(3.5, "one"), (-100.0, "two")]


def test_a_file_without_labels(file):
    path = file("a.tsv", "id\ttext\n4\tone\n")
    assert read_labelled_texts(path, needs_labels=False) == [
        LabelledText(None, "one", 2, None, "4")
    ]
    hidden = file("b.tsv", "text\tlabel\none\t-1\ntwo\t-1\n")
    assert rows(hidden, needs_labels=False) == [(None, "one"), (None, "two")]
    assert rows(hidden, kind="labels", needs_labels=False) == [(None, "one"), (None, "two")]
    empty = file("c.tsv", "text\tlabel\none\t\ntwo\t\n")
    assert rows(empty, kind="labels", needs_labels=False) == [(None, "one"), (None, "two")]
    # The column of the training file's labels isn't here: another one isn't taken for it.
    other = file("d.tsv", "text\tscore\none\t5\n")
    assert rows(other, Columns(label="stars"), needs_labels=False) == [(None, "one")]
    assert rows(file("e.tsv", "one\n"), Columns("1", "", "2"), needs_labels=False) == [
        (None, "one")
    ]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.tsv", b"label\ttext\nx\t\xff\n", "line 2: not UTF-8"),
        ("a.tsv", "label\ttext\tlabel\nx\ty\tz\n", "line 1: the column 'label' is there twice"),
        ("a.tsv", "label\tword\nx\ty\n", "line 1: found no column for the text among label, word"),
        ("a.tsv", "text\tword\nx\ty\n", "line 1: found no column for the label"),
        ("a.tsv", "label\tscore\ttext\nx\ty\tz\n", "line 1: the label may be label or score"),
        ("a.tsv", "label\ttext\nx\n", "line 2: expected at least 2 columns"),
        ("a.tsv", "label\ttext\nx\ty\tz\n", "line 2: 3 columns, and 2 in the first line"),
        ("a.csv", "label,text\nx,y\rz\n", "line 2: a carriage return without a line feed"),
        ("a.csv", f"label,text\nx,{'y' * 140000}\n", "line 2: a cell of more than 131072"),
        ("a.tsv", "label\ttext\n\ty\n", "line 2: the label is empty"),
        ("a.tsv", "label\ttext\n", "holds no rows"),
        ("a.tsv", "", "holds no rows"),
        ("a.csv", 'label,text\nx,"y" z\n', "line 2: bad quotes"),
        ("a.csv", 'label,text\nx,y\nx,"y\nz\n', "line 3: bad quotes"),
        ("a.csv", "label,text\nx,y,z\n", "line 2: 3 columns, and 2 in the first line"),
        ("a.jsonl", '{"label": "x", "text": "y"}\n{"label": "x"\n', "line 2: not JSON"),
        (
            "a.jsonl",
            '{"text": "y", "text": "z"}',
            "line 1: not JSON (the key 'text' is there twice",
        ),
        ("a.jsonl", '["x", "y"]', "line 1: expected a JSON object"),
        (
            "a.jsonl",
            '{"label": 1, "text": "y"}\n{"text": "y"}',
            "line 2: the object has no 'label'",
        ),
        ("a.jsonl", '{"label": 1, "text": null}', "line 1: expected a text"),
        ("a.jsonl", '{"label": 1, "text": true}', "line 1: expected a text"),
        ("a.jsonl", '{"label": 1, "text": ["a", 1]}', "line 1: expected a text"),
        ("a.jsonl", '{"label": ["x"], "text": "y"}', "line 1: the label must be a text or a"),
        ("a.jsonl", '{"label": {"x": 1}, "text": "y"}', "line 1: the label must be a text or a"),
        ("a.jsonl", '{"label": true, "text": "y"}', "line 1: the label must be a text or a"),
        ("a.jsonl", '{"label": NaN, "text": "y"}', "line 1: the label must be a text or a"),
        ("a.jsonl", '{"label": 1, "text": "\\ud83d"}', "line 1: it holds half of a surrogate"),
        ("a.jsonl", '{"label": "\\uD83D", "text": "y"}', "line 1: it holds half of a surrogate"),
        ("a.jsonl", f'{{"label": {"1" * 5000}, "text": "y"}}', "line 1: not JSON"),
        ("a.tsv", "label\ttext\rx\ty\r", "its lines end in CR alone"),
        ("a.csv", "label,text\rx,y\r", "its lines end in CR alone"),
    ],
)
def test_refused(file, name, content, sentence):
    message = refused(read_labelled_texts, file(name, content))
    assert sentence in message
    assert name in message


@pytest.mark.parametrize("number", ["1e308", "1e40", "-1e40", "1" * 5000])
def test_numbers_that_float32_can_not_hold(file, number):
    path = file("a.tsv", f"label\ttext\n1\tone\n{number}\ttwo\n")
    message = refused(read_labelled_texts, path, kind="regression")
    assert "a.tsv, line 3: the label must be" in message and len(message) < 400


def test_whole_emoji_and_labels_of_json_lines(file):
    path = file("a.jsonl", '{"label": ["x", "y"], "text": "\\ud83d\\ude00"}\n'
                '{"label": null, "text": "b"}\n{"label": "y,z", "text": "c"}')  # fmt: skip
    assert rows(path, kind="labels") == [(("x", "y"), "\U0001f600"), ((), "b"), (("y", "z"), "c")]
    bad = file("b.jsonl", '{"label": ["x", true], "text": "a"}')
    assert "line 1: the label must be a text" in refused(read_labelled_texts, bad, kind="labels")


@pytest.mark.parametrize(
    ("choices", "label", "sentence"),
    [
        ("null", "0", "choices must be a list of texts. Received: None"),
        ("3", "0", "choices must be a list of texts. Received: 3"),
        ('"ab"', "0", "choices must be a list of texts. Received: 'ab'"),
        ('["a"]', "0", "give at least two choices"),
        ('["a", null]', "0", "expected texts"),
        ('["a", "\\udc00"]', "0", "half of a surrogate pair"),
        ('["a", "b"]', '"²"', "the label must be the number of a choice"),
        ('["a", "b"]', f'"{"1" * 5000}"', "the label must be the number of a choice"),
        ('["a", "b"]', "true", "the label must be the number of a choice"),
    ],
)
def test_refused_choices(file, choices, label, sentence):
    path = file("a.jsonl", f'{{"text": "x", "choices": {choices}, "label": {label}}}')
    message = refused(read_choices, path)
    assert "a.jsonl, line 1: " in message and sentence in message and len(message) < 400


def test_refused_columns_and_numbers(file):
    path = file("a.tsv", "label\ttext\nhigh\tone\n")
    assert "there's no column 'body'" in refused(read_labelled_texts, path, Columns(text="body"))
    same = refused(read_labelled_texts, path, Columns(text="label"))
    assert "one column can't be two of text, pair and label" in same
    for number in ("0", "3"):
        assert "--label-column must be a name or a number from 1 to 2" in refused(
            read_labelled_texts, path, Columns("1", "", number)
        )
    named = file("b.csv", "2,1\none,x\ntwo,y\n")  # names that are numbers
    assert rows(named, Columns("2", "", "1")) == [("x", "one"), ("y", "two")]
    assert "line 2: the label must be a number" in refused(
        read_labelled_texts, path, kind="regression"
    )


def test_class_names(file):
    def table(*labels):
        return [LabelledText(label, "", i) for i, label in enumerate(labels, 1)]

    assert tables.class_names("a", table("b", "a", "b")) == ["a", "b"]
    assert tables.class_names("a", table("10", "2", "-1")) == ["-1", "2", "10"]
    assert tables.class_names("a", table(("x",), (), ("w", "x"))) == ["w", "x"]
    assert tables.class_names("a", table("b", "a"), ("b", "c", "a")) == ["b", "c", "a"]
    assert "a, line 2: the label 'a'" in refused(
        tables.class_names, "a", table("b", "a"), ("b", "c")
    )
    assert tables.class_names("a", table("1" * 5000, "2"))[1] == "2"
    assert "an empty name" in refused(tables.class_names, "a", table("b"), ("b", ""))
    assert "must differ" in refused(tables.class_names, "a", table("b"), ("b", "b"))
    assert "one class only, 'b'" in refused(tables.class_names, "a", table("b", "b"))


def test_an_unseen_dev_label():
    dev = [LabelledText("x", "", 2), LabelledText("z", "", 3)]
    assert "dev.tsv, line 3: the label 'z'" in refused(
        tables.check_labels, "dev.tsv", dev, ["x", "y"]
    )


def test_glue_and_clue(file):
    """Official layouts in small, made up."""
    cola = file("cola.tsv", "gj04\t1\t\tOur friends.\n")
    assert rows_of("cola", cola) == [("1", "Our friends.", None, "0")]
    test = file("cola_test.tsv", "index\tsentence\n0\tBill ran.\n")
    assert rows_of("cola", test, needs_labels=False) == [(None, "Bill ran.", None, "0")]
    mrpc = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe "ran".\tHe fled.\n'
    assert rows_of("mrpc", file("mrpc.tsv", mrpc)) == [("1", 'He "ran".', "He fled.", "0")]
    mnli = file("mnli.tsv", "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
                "3\tx\ta\tb\tneutral\tentailment\n")  # fmt: skip
    assert rows_of("mnli", mnli) == [("entailment", "a", "b", "3")]
    stsb = "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\ta\tb\t2.5\n"
    assert rows_of("stsb", file("stsb.tsv", stsb)) == [(2.5, "a", "b", "0")]
    tnews = file("tnews.json", '{"label": "102", "label_desc": "news", "sentence": "文"}')
    assert rows_of("tnews", tnews) == [("102", "文", None, "0")]
    csl = '{"id": 1, "abst": "文", "keyword": ["a", "b"], "label": "1"}'
    assert rows_of("csl", file("csl.json", csl)) == [("1", "文", "a b", "1")]


def rows_of(name, path, **options):
    found = benchmarks.read_benchmark(path, name, **options)
    return [(row.label, row.text, row.pair, row.name) for row in found]


def test_broken_rows_of_qqp_are_left_out(file):
    path = file("qqp.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
                "0\t1\t2\ta\tb\t1\nbroken\n3\t4\t5\tc\td\t0\n")  # fmt: skip
    with pytest.warns(
        UserWarning, match="left out 1 rows with too few columns, the first in line 3"
    ):
        assert [row[0] for row in rows_of("qqp", path)] == ["1", "0"]


@pytest.mark.parametrize(
    ("name", "test_file", "predicted", "answers", "content"),
    [
        ("cola", "", ["1", "0"], "CoLA.tsv", "index\tprediction\n4\t1\n5\t0\n"),
        ("stsb", "", [5.2, 1.23456], "STS-B.tsv", "index\tprediction\n4\t5.000\n5\t1.235\n"),
        ("mnli", "test_mismatched.tsv", ["neutral"] * 2, "MNLI-mm.tsv",
         "index\tprediction\n4\tneutral\n5\tneutral\n"),
        ("tnews", "", ["102", "103"], "tnews_predict.json",
         '{"id": 4, "label": "102"}\n{"id": 5, "label": "103"}\n'),
    ],
)  # fmt: skip
def test_answers_for_a_server(tmp_path, name, test_file, predicted, answers, content):
    table = [LabelledText(None, "a", 1, None, each) for each in ("4", "5")]
    path = benchmarks.write_answers(tmp_path / "submission", name, table, predicted, test_file)
    assert path.name == answers
    assert path.read_text(encoding="utf-8") == content


def test_choices(file):
    swag = file("swag.csv", "sent1,sent2,ending0,ending1,label\nHe sat.,He,ran.,read.,1\n")
    [row] = read_choices(swag)
    assert (row.label, row.text, row.pair) == ("1", "He sat.", ("He ran.", "He read."))
    listed = file("a.jsonl", '{"question": "Why?", "choices": ["a", "b", "c"]}')
    [row] = read_choices(listed, needs_labels=False)
    assert (row.label, row.pair) == (None, ("a", "b", "c"))
    check_choices(listed, [row], 3)
    assert "a.jsonl, line 1: 3 choices, and 4 in the training file" in refused(
        check_choices, listed, [row], 4
    )
    bad = file("b.csv", "context,choice1,choice2,label\na,b,c,2\n")
    assert "b.csv, line 2: the label must be the number of a choice, from 0 to 1" in refused(
        read_choices, bad
    )
    assert "line 2: 3 choices, and 2 in line 1" in refused(
        read_choices,
        file("c.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 0}\n'
             '{"text": "a", "choices": ["b", "c", "d"], "label": 0}'),
    )  # fmt: skip
    assert "expected columns such as" in refused(read_choices, file("d.csv", "a,b\nc,d\n"))
