"""An entity tagger fine-tuned and judged, against transformers' `Trainer` as `run_ner.py` calls it.

all-MiniLM-L6-v2 on both sides; NCBI disease where it lies beside the project (or what CLOZELINE_BENCHMARK_LABELLED
names), judged on its development part, else generated sentences. The same sentences for training, validation and test,
the same epochs, batch, learning rate and seeds; all else as each side has it by default: theirs pads to the longest
row of a batch drawn by chance (run_ner.py has `--pad_to_max_length` off), ours to that of batches of like length. So
the ratio is about what lengths there are: such batches of theirs are padding to 56 % here, to 45 % on WNUT 17. A round
is one seed, from files to a saved model and the answers on the test part. Ratio: their seconds over ours; entity F1 of
each seed, the difference of the means and its standard error are in the line.
"""

from collections.abc import Sequence

from clozeline.tasks.tagging.scores import score
from comparison import run_ner
from comparison.finetuning import Setup, compare
from comparison.labelled import Item, entity_parts
from comparison.their_tasks import Recipe


def entity_f1(items: Sequence[Item], answers: Sequence[Sequence[str]]) -> float:
    return score([item["ner_tags"] for item in items], answers).f1


SETUP = Setup(
    name="finetune_tagging",
    kind="tagging",
    metric="f1",
    parts=entity_parts,
    sizes={"test": 600, "validation": 100, "train": 1200},
    recipe=Recipe(epochs=2, batch_size=32, learning_rate=2e-4, max_length=128, seed=0),
    theirs=run_ner.answers,
    judge=entity_f1,
)


def main() -> None:
    compare(SETUP, __doc__)


if __name__ == "__main__":
    main()
