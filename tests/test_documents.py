import itertools
import pathlib
import re

import numpy as np
import pytest

from keras_bert.data.documents import DocumentTokenizer, documents_in, split_sentences
from keras_bert.tokenizers import WordPiece

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "pretraining"


def read(text, *args, **kwargs):
    return list(documents_in(text.split("\n"), *args, **kwargs))


def test_blank_lines_end_documents():
    # NSP-03: an empty, a zero-width and a space-only line are all blank.
    text = "a b\n\n\n\u200b\n\n   \nc d\r\n e\u2028f "
    assert read(text) == [["a b"], ["c d", "e\u2028f"]]


def test_unwrap_joins_the_lines_of_a_paragraph():
    text = "one\ntwo\n\n春眠\n不覺曉。\nthree\n"
    assert read(text, "file", unwrap=True) == [["one two", "春眠不覺曉。 three"]]
    assert read(text, "blank", unwrap=True) == [["one two"], ["春眠不覺曉。 three"]]
    assert read(text, "file") == [["one", "two", "春眠", "不覺曉。", "three"]]


def test_headings_begin_documents():
    text = (
        "Preface\n\nPART\nChapter 4\nCHAPTER V. The Storm\nIt\nrained.\n\nChapter 4 was long.\n"
        "chapter vi\n第三回　x\nb\n第四回中既将c\n = T = \nd\n = = Sub = = \ne\n"
    )
    documents = read(text, "heading", unwrap=True)
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
    text = (SHARED / name).read_text(encoding="utf-8")
    documents = read(text, document_break, unwrap)
    assert len(documents) == count
    sentences = [s for texts in documents for text in texts for s in split_sentences(text)]
    assert "".join("".join(sentences).split()) == "".join(text.split())


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


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "cd", ".", "##ef", "使", "用"]


def tokens_of(documents, words=False, segment=None, lowercase=True):
    """The ids of each sentence of each document, and the same of `continues`."""
    tokenizer = WordPiece([*VOCABULARY, *"语言模型。"], lowercase=lowercase)
    made = DocumentTokenizer(tokenizer, words, segment)(documents, range(len(documents)))
    assert made.works.tolist() == [*range(len(documents))]
    rows = [row.tolist() for row in np.split(made.token_ids, made.sentence_ends)][:-1]
    ends = [0, *made.document_ends.tolist()]
    ids = [rows[i:j] for i, j in itertools.pairwise(ends)]
    return ids if made.continues is None else (ids, made.continues.tolist())


def test_sentences_without_tokens_are_dropped():
    documents = [["Ab. Cd.", "\u00ad"], ["\u00ad"], ["cd\u00ad ef"], ["", "\t"]]
    assert tokens_of(documents) == [[[5, 7], [6, 7]], [], [[6, 1]], []]
    assert tokens_of([[""], ["\u00ad"], ["ab"]]) == [[], [], [[5]]]
    assert tokens_of([["\u00ad"]]) == [[]] and tokens_of([]) == []


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("name", ["en_wikitext2_valid.txt", "zh_wikipedia_cmrc_trial.txt"])
def test_ids_are_those_of_the_tokenizer(shared, name, lowercase):
    text = shared(f"data/pretraining/{name}").read_text(encoding="utf-8")[:100_000]
    text += "a\x00b \x1fc\x7f d\u2028e\u3000f \ufffd 1,000's \\[x]^`{|}~\n" + "y" * 300
    lines = [line for line in text.split("\n") if line.strip()]
    letters = sorted(set(text) - set("\n "))
    vocabulary = [*VOCABULARY[:5], *letters, *(f"##{letter}" for letter in letters), "the"]
    tokenizer = WordPiece(vocabulary, lowercase=lowercase)
    made = DocumentTokenizer(tokenizer)([lines[:50], lines[50:]], [0, 1])
    rows = tokenizer([s for line in lines for s in split_sentences(line)])
    assert made.token_ids.tolist() == [i for row in rows for i in row]
    assert made.sentence_ends.tolist() == np.cumsum([len(row) for row in rows if row]).tolist()


def test_words_of_a_segmenter():
    documents = [["使用 语言 模型 。 语言 ab cd 用 Abef"], ["使 用"]]
    ids, continues = tokens_of(documents, words=True)
    assert ids == [[[9, 10, 11, 12, 13, 14, 15], [11, 12, 5, 6, 10, 5, 8]], [[9, 10]]]
    assert continues == [0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]

    def segment(text):  # gives words of two letters, and the spaces, as segmenters do
        return re.findall(r"\s|[a-z]+|.{1,2}", text)

    assert tokens_of([["使用语言 ab cd"]], segment=segment) == (
        [[[9, 10, 11, 12, 5, 6]]],
        [0, 1] * 2 + [0, 0],
    )
