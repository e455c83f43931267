"""The span of a context that answers a question, as `examples/pytorch/question-answering/run_qa.py` does it.

A reimplementation of transformers' documented behaviour: windows of `--max_seq_length` (384 by default) with
`--doc_stride`
128, padded to that length (its default). The answer is the pair with the highest sum among the 20 best starts and ends
(`--n_best_size`), at most 30 tokens long (`--max_answer_length`). With `--version_2_with_negative`, there is no answer
if the first token scores higher (`--null_score_diff_threshold` 0).

Shapes: W windows, L length of a window.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoModelForQuestionAnswering, default_data_collator

from comparison.their_tasks import PARTS, Recipe, opened

STRIDE = 128
_NUM_BEST = 20
_MOST_TOKENS = 30
_CONTEXT = 1
_NO_SPAN = (-1, -1)
Scores = npt.NDArray[np.float32]
Window = tuple[int, list[list[int]]]
"""Index of the question, and the character span of each token of the context."""


def answers(parts: Path, weights: Path, recipe: Recipe) -> list[str]:
    """Return the answer to each question of the test part; empty if it has none."""
    with opened(parts, weights, recipe) as script:
        model = AutoModelForQuestionAnswering.from_pretrained(weights)

        def tokenize(examples: dict[str, list[Any]]) -> Any:
            rows = script.tokenizer(
                [question.lstrip() for question in examples["question"]],
                examples["context"],
                truncation="only_second",
                max_length=recipe.max_length,
                stride=STRIDE,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding="max_length",
            )
            questions = rows.pop("overflow_to_sample_mapping")
            spans = [
                [span if of == _CONTEXT else _NO_SPAN for span, of in zip(row, rows.sequence_ids(number), strict=True)]
                for number, row in enumerate(rows.pop("offset_mapping"))
            ]
            ends = [_ends(examples["answers"][question], of) for question, of in zip(questions, spans, strict=True)]
            targets = {"start_positions": [a for a, _ in ends], "end_positions": [b for _, b in ends]}
            if "number" not in examples:  # training rows are not mapped back to questions
                return rows | targets
            return rows | targets | {"number": [examples["number"][it] for it in questions], "spans": spans}

        script.parts["test"] = script.parts["test"].add_column("number", range(len(script.parts["test"])))
        has_negatives = any(not answer["text"] for part in PARTS for answer in script.parts[part]["answers"])
        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        windows = list(zip(rows["test"]["number"], rows["test"]["spans"], strict=True))
        start_WL, end_WL = script.predict(model, default_data_collator, rows)
        contexts = list(script.parts["test"]["context"])
        return _texts(contexts, windows, start_WL, end_WL, has_negatives=has_negatives)


def _ends(answer: dict[str, list[Any]], spans: list[tuple[int, int]]) -> tuple[int, int]:
    """First and last token of the first answer; the first token of the window where it is not whole in there."""
    if not answer["answer_start"]:
        return 0, 0
    start = answer["answer_start"][0]
    end = start + len(answer["text"][0])
    inside = [token for token, (first, last) in enumerate(spans) if first >= 0 and last > start and first < end]
    if not inside or spans[inside[0]][0] > start or spans[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def _texts(
    contexts: list[str], windows: list[Window], start_WL: Scores, end_WL: Scores, *, has_negatives: bool
) -> list[str]:
    best = [(-np.inf, "")] * len(contexts)
    nothing = [np.inf] * len(contexts)
    for (question, spans), start_L, end_L in zip(windows, start_WL, end_WL, strict=True):
        nothing[question] = min(nothing[question], float(start_L[0] + end_L[0]))
        for first in np.argsort(start_L)[: -_NUM_BEST - 1 : -1].tolist():
            for last in np.argsort(end_L)[: -_NUM_BEST - 1 : -1].tolist():
                if spans[first][0] < 0 or spans[last][0] < 0 or not first <= last < first + _MOST_TOKENS:
                    continue
                text = contexts[question][spans[first][0] : spans[last][1]]
                best[question] = max(best[question], (float(start_L[first] + end_L[last]), text))
    return ["" if has_negatives and none > score else text for none, (score, text) in zip(nothing, best, strict=True)]
