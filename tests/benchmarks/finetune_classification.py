"""Fine-tuning and evaluation of a sentence classifier, compared with transformers' `Trainer` as in `run_glue.py`.

Both sides use all-MiniLM-L6-v2 and the sentences of Pang & Lee's polarity set if they lie beside the project (or in the
folder that CLOZELINE_BENCHMARK_LABELLED names), else generated ones. Texts for training, validation and test, epochs,
batch, learning rate and seeds are the same; everything else is each side's default. Theirs pads every row to
`--max_seq_length` 128 (`--pad_to_max_length` is run_glue.py's default), ours to the longest row in batches of similar
length. A round is one seed, from reading files to a saved model and answers for the test part. The ratio is their
seconds / ours; the line has the accuracy of each seed, the difference of the means and its standard error.
"""

from collections.abc import Sequence

from comparison import their_tasks
from comparison.finetuning import Setup, compare
from comparison.labelled import Item, polarity_parts
from comparison.their_tasks import Recipe


def accuracy(items: Sequence[Item], answers: Sequence[str]) -> float:
    return sum(item["label"] == answer for item, answer in zip(items, answers, strict=True)) / len(items)


SETUP = Setup(
    name="finetune_classification",
    kind="classification",
    metric="accuracy",
    parts=polarity_parts,
    sizes={"test": 600, "validation": 100, "train": 1600},
    recipe=Recipe(epochs=1, batch_size=32, learning_rate=1e-4, max_length=128, seed=0),
    theirs=their_tasks.classified,
    judge=accuracy,
)


def main() -> None:
    compare(SETUP, __doc__)
