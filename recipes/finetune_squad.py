r"""Fine-tune BERT to answer questions from a text (Devlin et al., 2018, sections 4.2 and 4.3).

    python recipes/finetune_squad.py --checkpoint minilm --train-file squad/train.json \
        --dev-file squad/dev.json --learning-rate 5e-5 --batch-size 16 --output-dir runs/answers

Files are the JSON of SQuAD 1.1 or 2.0, CMRC 2018, DRCD or XQuAD. Where questions of the dev file
have no answer, the threshold of "no answer" is the one of the best F1 on it, and is saved with the
preset: score it on a `--test-file`, as on the dev file it has been fitted; one without `answers`
is answered alone. The best epoch is then
that of the best mean of F1 and of the answerable questions' F1 without a threshold: F1 alone is
the same for all models that had better say nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

import keras_bert
from keras_bert import answer_scores, finetuning, inference, recipe
from keras_bert.answers import Answer, Reading
from keras_bert.data.questions import Question, check_room, read_questions, squad
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.layers.spans import SpansApart
from keras_bert.report import Table
from keras_bert.tokenizer_checks import check_unknown

AGREEMENTS = {"squad": answer_scores.squad_agreement, "cmrc": answer_scores.cmrc_agreement}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args(finetuning.Args):
    """Fine-tune BERT to answer questions from a text.

    Files are the JSON of SQuAD 1.1 or 2.0, CMRC 2018, DRCD or XQuAD: `data`, `paragraphs`,
    `context`, `qas` with `id`, `question` and `answers` of `text` and `answer_start`.
    """

    rules: Literal["auto", "squad", "cmrc"] = "auto"
    """Exact match and F1 by words, as SQuAD's script has it, or by ideographs, as CMRC 2018's;
    auto: the latter where most answers of the dev file hold an ideograph."""
    max_sequence_length: int = 384
    """Tokens of question and window together, with [CLS] and [SEP]."""
    stride: int = 128
    """Tokens from one window on a long context to the next."""
    max_answer_length: int = 30
    """Tokens of the longest answer."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args, strategy = finetuning.set_up(args)
    for flag, value in (("stride", args.stride), ("max-answer-length", args.max_answer_length)):
        if value < 1:
            raise InputError(f"--{flag} must be at least 1. Received: {value}.")

    # ---- Data ------------------------------------------------------------------
    files = {"train": args.train_file, "dev": args.dev_file, "test": args.test_file}
    data = {name: read_questions(path, needs_answers=name != "test")
            for name, path in files.items() if path}  # fmt: skip
    if args.smoke:
        data = {name: rows[: finetuning.SMOKE_EXAMPLES] for name, rows in data.items()}
    for name, rows in data.items():
        unanswerable = sum(row.answers == () for row in rows)
        print(f"{name}: {len(rows)} questions, {unanswerable} without an answer")
    rules = args.rules if args.rules != "auto" else rules_for(data["dev"])
    print(f"Scores by the rules of {'SQuAD' if rules == 'squad' else 'CMRC 2018'}")
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    check_unknown(base.tokenizer, [row.question for row in data["train"][:2000]])
    finetuning.check_lengths(args, base)
    for name, rows in data.items():
        check_room(files[name], rows, base.tokenizer, args.max_sequence_length)

    # ---- Model -----------------------------------------------------------------
    settings = {
        "max_sequence_length": args.max_sequence_length,
        "stride": args.stride,
        "max_answer_length": args.max_answer_length,
    }

    def build(args: Args) -> tuple[keras_bert.Preset, keras.Model]:
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.span_classifier(encoder)
        finetuning.keep_head(args, base, model)
        preset = keras_bert.Preset(
            base.config, encoder, base.tokenizer, model, settings=dict(settings)
        )
        # The same weights, for rows that hold several questions.
        starts = keras.Input((None,), dtype="int32", name="sequence_starts")
        apart = SpansApart(name="spans_apart")
        mask = model.input["padding_mask"]
        outputs = {name: apart(x, mask, starts) for name, x in model.output.items()}
        inputs = model.input | {"sequence_starts": starts}
        return preset, keras_bert.training.Model(inputs, outputs, name="span_classifier")

    def batches(args: Args) -> Any:
        return squad(
            data["train"],
            base.tokenizer,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            stride=args.stride,
            layout="one_shape" if finetuning.needs_one_shape(args, strategy) else "packed",
            row_multiple=strategy.num_replicas_in_sync * args.accumulate,
            seed=args.seed,
        )

    # ---- Train -----------------------------------------------------------------
    def score(preset: keras_bert.Preset) -> dict[str, float]:
        found = read(preset, data["dev"])
        return scores(data["dev"], found, rules, tuned_threshold(data["dev"], found, rules))

    task = finetuning.Task(
        build=build,
        batches=batches,
        num_examples=len(data["train"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        score=score,
        metric="f1" if all(row.answers for row in data["dev"]) else "selection",
        floor=float(np.mean([not row.answers for row in data["dev"]])) / 2,
    )
    folder = finetuning.start_run(args, batches)
    best, metrics = finetuning.finetune(args, task, strategy, folder)

    # ---- Save ------------------------------------------------------------------
    preset = finetuning.settled(best, strategy, folder)
    found = {name: read(preset, data[name], count=20) for name in data if name != "train"}
    threshold = tuned_threshold(data["dev"], found["dev"], rules)
    if threshold is not None:
        preset.settings["no_answer_threshold"] = threshold
        metrics["no_answer_threshold"] = threshold
        keras_bert.save(preset, folder / "preset")
    last = "test" if "test" in data else "dev"
    if last == "test" and data["test"][0].answers is not None:
        metrics["test"] = finetuning.rounded(scores(data["test"], found["test"], rules, threshold))
    write_json(folder / "metrics.json", metrics)
    answers = {name: [each.answer(threshold) for each in found[name]] for name in found}
    finetuning.write_predictions(folder, prediction_rows(data[last], answers[last], rules))
    write_official(folder, data[last], found[last], answers[last])
    errors = confident_errors(prediction_rows(data["dev"], answers["dev"], rules))
    finetuning.write_run_report(folder, "Answers from a text", best.args, metrics, [errors])
    print(f"Report: {folder / 'report.html'}")
    return metrics


def rules_for(rows: Sequence[Question]) -> str:
    """CMRC's where most answers hold an ideograph."""
    texts = [answer.text for row in rows for answer in row.answers or ()]
    chinese = sum(any("\u4e00" <= char <= "\u9fa5" for char in text) for text in texts)
    return "cmrc" if 2 * chinese > len(texts) else "squad"


def read(preset: keras_bert.Preset, rows: Sequence[Question], count: int = 1) -> list[Reading]:
    """What `keras_bert.answer` chooses its answers from."""
    texts = [row.question for row in rows], [row.context for row in rows]
    return inference.readings(preset, *texts, count=count)


def agreements(
    rows: Sequence[Question], answers: Sequence[str], rules: str
) -> list[answer_scores.Agreement]:
    """Each answer's exact match and F1 with the best of the true answers."""
    return [
        answer_scores.best_agreement(AGREEMENTS[rules], text, [x.text for x in row.answers or ()])
        for row, text in zip(rows, answers, strict=True)
    ]


def tuned_threshold(rows: Sequence[Question], found: Sequence[Reading], rules: str) -> float | None:
    """The no-answer threshold of the best F1; None where every question has an answer."""
    if all(row.answers for row in rows):
        return None
    answering = [x.f1 for x in agreements(rows, [each.answer().answer for each in found], rules)]
    silent = [x.f1 for x in agreements(rows, [""] * len(rows), rules)]
    return answer_scores.best_threshold([each.null_odds for each in found], answering, silent)


def scores(
    rows: Sequence[Question], found: Sequence[Reading], rules: str, threshold: float | None
) -> dict[str, float]:
    """Exact match and F1, and how well questions without an answer are told from the others."""

    def mean(each: list[answer_scores.Agreement], name: str) -> float:
        return float(np.mean([getattr(x, name) for x in each]))

    judged = agreements(rows, [each.answer(threshold).answer for each in found], rules)
    results = {name: mean(judged, name) for name in ("exact_match", "f1")}
    has_answer = [bool(row.answers) for row in rows]
    if all(has_answer):
        return results
    odds = [each.null_odds for each in found]
    results["no_answer_share"] = 1 - float(np.mean(has_answer))  # F1 of always answering ""
    results["no_answer_average_precision"] = answer_scores.average_precision(
        odds, [not each for each in has_answer]
    )
    results["selection"] = results["f1"] / 2
    if any(has_answer):
        pairs = [(row, x) for row, x in zip(rows, found, strict=True) if row.answers]
        texts = [x.answer().answer for _, x in pairs]
        judged = agreements([row for row, _ in pairs], texts, rules)
        for name in ("exact_match", "f1"):
            results[f"answerable_{name}"] = mean(judged, name)  # without a threshold
        results["selection"] += results["answerable_f1"] / 2
    return results


def prediction_rows(
    rows: Sequence[Question], answers: Sequence[Answer], rules: str
) -> list[dict[str, Any]]:
    """What `write_predictions` takes: true answers and scores where there are any."""
    found = []
    judged = agreements(rows, [each.answer for each in answers], rules)
    for row, answer, agreement in zip(rows, answers, judged, strict=True):
        entry: dict[str, Any] = {"id": row.id, "question": row.question}
        if row.answers is None:
            found.append(entry | answer._asdict())
            continue
        entry["true"] = [each.text for each in row.answers]
        found.append(entry | answer._asdict() | finetuning.rounded(agreement._asdict()))
    return found


def write_official(
    folder: Any, rows: Sequence[Question], found: Sequence[Reading], answers: Sequence[Answer]
) -> None:
    """The files that the official scripts of SQuAD and CMRC 2018 read, and the n-best answers."""
    ids = [row.id for row in rows]
    texts = [each.answer for each in answers]
    write_json(folder / "answers.json", dict(zip(ids, texts, strict=True)))
    odds = [each.null_odds for each in found]
    write_json(folder / "null_odds.json", dict(zip(ids, odds, strict=True)))
    best = {}
    for name, each in zip(ids, found, strict=True):
        spans = [
            {"text": span.answer, "start": span.start, "end": span.end,
             "probability": span.score * (1 - each.nothing), "logit": logit}
            for span, logit in zip(each.spans, each.logits, strict=True)
        ]  # fmt: skip
        best[name] = [*spans, {"text": "", "probability": each.nothing}]
    write_json(folder / "nbest.json", best)


def confident_errors(table: Sequence[dict[str, Any]], count: int = 30) -> Table:
    """The wrong answers of which the model was surest."""
    wrong = sorted((row for row in table if not row["exact_match"]), key=lambda row: -row["score"])
    columns = ("id", "question", "true", "answer", "score", "f1")
    rows = [[" | ".join(row[x]) or "(none)" if x == "true" else row[x] for x in columns]
            for row in wrong[:count]]  # fmt: skip
    return Table("Most confident errors", columns, rows)


if __name__ == "__main__":
    recipe.run(main, Args)
