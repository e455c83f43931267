"""Fine-tuning and evaluation of extractive question answering, compared with `Trainer` as in `run_qa.py`.

Both sides use all-MiniLM-L6-v2 and the answerable questions of a part of SQuAD 2.0 (as in SQuAD 1.1) if it lies beside
the project (or in the folder that CLOZELINE_BENCHMARK_LABELLED names), else generated ones. Questions for training,
validation and test, epochs, batch, learning rate, seeds, and windows of 384 tokens with a stride of 128 are the same;
everything else is each side's default. Theirs pads every window to 384 (`--pad_to_max_length` is run_qa.py's default),
ours to the longest window in batches of similar length. A model learns little from so few questions, so the line also
has the figures of no answer to anything and of the nearest sentence on the same part. A round is one seed, from reading
files to a saved model and answers for the test part. The ratio is their seconds / ours; the line has SQuAD's F1 of each
seed, the difference of the means and its standard error. It takes about twelve minutes on two cores.
"""

from collections.abc import Sequence
from statistics import fmean

from clozeline.records.finetune.scored_items import f1
from comparison import their_tasks
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
    theirs=their_tasks.answered,
    judge=mean_f1,
    knobs={"stride": their_tasks.STRIDE},
    num_seeds=2,
)


def main() -> None:
    compare(SETUP, __doc__)
