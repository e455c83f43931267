"""Fine-tuning and evaluation of an entity tagger, compared with transformers' `Trainer` as in `run_ner.py`.

Both sides use all-MiniLM-L6-v2 and NCBI disease if it lies beside the project (or in the folder that
CLOZELINE_BENCHMARK_LABELLED names), evaluated on its development part, else generated sentences. Sentences for
training, validation and test, epochs, batch, learning rate and seeds are the same; everything else is each side's
default. Theirs pads to the longest row of a random batch (`--pad_to_max_length` is off in run_ner.py), ours to the
longest in batches of similar length. So the ratio depends on the lengths: their batches are 56 % padding here, 45 % on
WNUT 17. A round is one seed, from reading files to a saved model and answers for the test part. The ratio is their
seconds / ours; the line has the entity F1 of each seed, the difference of the means and its standard error.
"""

from collections.abc import Sequence

from clozeline.tasks.tagging.sentences import score
from comparison import their_tasks
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
    theirs=their_tasks.tagged,
    judge=entity_f1,
)


def main() -> None:
    compare(SETUP, __doc__)
