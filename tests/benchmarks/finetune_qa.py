"""Extractive question answering fine-tuned and judged, against transformers' `Trainer` as `run_qa.py` calls it.

all-MiniLM-L6-v2 on both sides; a part of SQuAD 2.0 where it lies beside the project (or what
CLOZELINE_BENCHMARK_LABELLED names), else generated questions; some have no answer. The same questions for training,
validation and test, the same epochs, batch, learning rate and seeds, windows of 384 tokens with a stride of 128; all
else as each side has it by default: theirs pads every window to 384 (`--pad_to_max_length` is the default of run_qa.py)
and leaves a question without an answer where that scores higher (`--null_score_diff_threshold` 0), ours pads to the
longest of windows of like length and chooses that bound on the validation part. A round is one seed, from files to a
saved model and the answers on the test part. Ratio: their seconds over ours; F1 of SQuAD's script for each seed, the
difference of the means and its standard error are in the line.
"""

from collections.abc import Sequence
from statistics import fmean

from clozeline.tasks.question_answering.scores import f1
from comparison import run_qa
from comparison.finetuning import Setup, compare
from comparison.labelled import Item, question_parts
from comparison.their_tasks import Recipe


def mean_f1(items: Sequence[Item], answers: Sequence[str]) -> float:
    return fmean(f1(item["answers"]["text"], answer) for item, answer in zip(items, answers, strict=True))


SETUP = Setup(
    name="finetune_qa",
    kind="question_answering",
    metric="f1",
    parts=question_parts,
    sizes={"test": 120, "validation": 60, "train": 280},
    recipe=Recipe(epochs=1, batch_size=8, learning_rate=1e-4, max_length=384, seed=0),
    theirs=run_qa.answers,
    judge=mean_f1,
    knobs={"stride": run_qa.STRIDE},
)


def main() -> None:
    compare(SETUP, __doc__)


if __name__ == "__main__":
    main()
