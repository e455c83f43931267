"""A sentence classifier fine-tuned and judged, against transformers' `Trainer` as `run_glue.py` calls it.

all-MiniLM-L6-v2 on both sides; sentences of Pang & Lee's polarity set where it lies beside the project (or what
CLOZELINE_BENCHMARK_LABELLED names), else generated ones. The same texts for training, validation and test, the same
epochs, batch, learning rate and seeds; all else as each side has it by default: theirs pads every row to
`--max_seq_length` 128 (`--pad_to_max_length` is the default of run_glue.py), ours to the longest row of batches of like
length. A round is one seed, from files to a saved model and the answers on the test part. Ratio: their seconds over
ours; accuracy of each seed, the difference of the means and its standard error are in the line.
"""

from collections.abc import Sequence

from comparison import run_glue
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
    theirs=run_glue.answers,
    judge=accuracy,
)


def main() -> None:
    compare(SETUP, __doc__)


if __name__ == "__main__":
    main()
