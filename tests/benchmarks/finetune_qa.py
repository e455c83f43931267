"""Extractive question answering fine-tuned and judged, against transformers' `Trainer` as `run_qa.py` calls it.

all-MiniLM-L6-v2 on both sides; the questions of a part of SQuAD 2.0 that have an answer, as in SQuAD 1.1, where it lies
beside the project (or what CLOZELINE_BENCHMARK_LABELLED names), else generated ones. The same questions for training,
validation and test, the same epochs, batch, learning rate and seeds, windows of 384 tokens with a stride of 128; all
else as each side has it by default: theirs pads every window to 384 (`--pad_to_max_length` is the default of
run_qa.py), ours to the longest of windows of like length. Of so few questions a model learns little: the line has what
no answer to anything, and the sentence nearest to the question, come to on the same part. A round is one seed, from
files to a saved model and the answers on the test part. Ratio: their seconds over ours; F1 of SQuAD's script for each
seed, the difference of the means and its standard error are in the line. Some twelve minutes on two cores.
"""

from collections.abc import Sequence
from statistics import fmean

from clozeline.tasks.scores.squad import f1
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
    sizes={"test": 120, "validation": 40, "train": 640},
    recipe=Recipe(epochs=1, batch_size=4, learning_rate=3e-4, max_length=384, seed=0),
    theirs=run_qa.answers,
    judge=mean_f1,
    knobs={"stride": run_qa.STRIDE},
    num_seeds=2,
)


def main() -> None:
    compare(SETUP, __doc__)


if __name__ == "__main__":
    main()
