import pathlib

import pytest

from keras_bert.data.documents import read_documents, split_sentences, tokenize_documents
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "pretraining"


def write(tmp_path, text):
    path = tmp_path / "input.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def read(tmp_path, text, *args, **kwargs):
    return list(read_documents(write(tmp_path, text), *args, **kwargs))


def test_blank_lines_end_documents(tmp_path):
    # NSP-03: an empty, a zero-width and a space-only line are all blank.
    text = "\ufeffa b\n\n\n\u200b\n\n   \nc d\r\n e\u2028f "
    assert read(tmp_path, text) == [["a b"], ["c d", "e\u2028f"]]


def test_unwrap_joins_the_lines_of_a_paragraph(tmp_path):
    text = "one\ntwo\n\n春眠\n不覺曉。\nthree\n"
    assert read(tmp_path, text, "file", unwrap=True) == [["one two", "春眠不覺曉。 three"]]
    assert read(tmp_path, text, "blank", unwrap=True) == [["one two"], ["春眠不覺曉。 three"]]
    assert read(tmp_path, text, "file") == [["one", "two", "春眠", "不覺曉。", "three"]]


def test_headings_begin_documents(tmp_path):
    text = (
        "Preface\n\nPART\nChapter 4\nCHAPTER V. The Storm\nIt\nrained.\n\nChapter 4 was long.\n"
        "chapter vi\n第三回　x\nb\n第四回中既将c\n = T = \nd\n = = Sub = = \ne\n"
    )
    documents = read(tmp_path, text, "heading", unwrap=True)
    assert documents == [
        ["Preface", "PART"],
        ["Chapter 4", "CHAPTER V. The Storm", "It rained.", "Chapter 4 was long."],
        ["chapter vi", "第三回　x", "b 第四回中既将c"],
        ["= T =", "d = = Sub = = e"],
    ]


@pytest.mark.parametrize(
    ("name", "document_break", "unwrap", "count"),
    [
        # The book's first heading was lost with its illustration: chapter I follows the front
        # matter in one document, then come the chapters II to LXI.
        ("en_pride_and_prejudice.txt", "heading", True, 61),
        ("en_state_union_1945_1962.txt", "blank", False, 20),
        ("en_wikitext2_valid.txt", "heading", False, 60),
        ("google_bert_sample_text.txt", "blank", False, 3),
        ("zh_hongloumeng_ch1_30.txt", "heading", False, 30),
    ],
)
def test_real_files_lose_no_text(name, document_break, unwrap, count):
    if not (SHARED / name).is_file():
        pytest.skip(f"needs {SHARED / name}")
    documents = list(read_documents(SHARED / name, document_break, unwrap))
    assert len(documents) == count
    sentences = [s for texts in documents for text in texts for s in split_sentences(text)]
    text = (SHARED / name).read_text(encoding="utf-8")
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"input\.txt, line 2: byte 0xe9 isn't UTF-8"):
        read(tmp_path, b"fine\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"input\.txt holds no text"):
        read(tmp_path, "\n \n\u200b\n")
    with pytest.raises(InputError, match=r"none\.txt isn't a file"):
        list(read_documents(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match=r"`document_break` must be .* Received"):
        read_documents(tmp_path / "none.txt", "page")


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "Did he?", "“Yes.”", "(No.)", "3 came…", "Then none."],
        ["Mr. Bennet met Dr. J. K. Hill, e.g. at St. James, U.S. soil.", "It rained."],
        ["“Is he?” said she.", "So did I.", "He ran at 3.5 knots."],
        ["1. First do this.", "2. Then that, as in No. 5 of the list.", "No.", "It isn't."],
        ["此开卷第一回也．", "作者云：“何事何人？”", "自又云（了。）", "３．５里；", "完"],
        ["也．", '"通灵之说．"', "故曰……", "不是！！", "完"],
        ["No end here, etc. and so on"],
        ["Wait . . .", "What ?", "Tokenized text ends too ."],
    ],
)
def test_split_sentences(sentences):
    is_chinese = any("\u4e00" <= letter <= "\u9fff" for letter in sentences[0])
    assert split_sentences(("" if is_chinese else " ").join(sentences)) == sentences


def test_tokenize_documents_drops_sentences_without_tokens():
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "cd", "."])
    documents = [["Ab. Cd.", "\u00ad"], ["\u00ad"], ["cd ef"]]
    assert list(tokenize_documents(documents, tokenizer)) == [[[5, 7], [6, 7]], [], [[6, 1]]]
