"""Time to the validation loss that run_mlm.py reaches in 5 minutes with a BERT of about our size.

The text is wikinews if it lies beside the project (or what CLOZELINE_BENCHMARK_TEXT names), else the built-in corpus;
both sides use one tokenizer, trained by `tokenize`. Theirs is `Trainer` over grouped rows of our length, with as many
tokens per step as ours and 15 % targets; its learning rate is the best of a sweep, with a warm-up over a tenth of the
steps and a decay to zero at the end of its minutes (run_mlm's default, no warm-up, is worse). Ours is the default
recipe of params.yaml, but 2 × 128 and a cosine; its learning rate is the best of a sweep too, and its schedule fits
into a share of those minutes. If a share is too short, its time counts anyway and the next is tried. For each seed
theirs runs first, because ours stops at its loss. The ratio is their seconds / ours.

`--tune` sweeps the learning rates of both sides on one seed and prints the losses. Known perplexities of theirs, BERT 2
× 128 on 2 cores for 2 minutes: 5e-5 without warm-up (run_mlm's default) 5,331; 1e-3 with warm-up 999. Known losses of
ours in 400 steps: 4e-3 7.06, 2e-3 6.95, 1e-3 6.92, 5e-4 7.04.
"""

from comparison.quality import Setup, bert_like
from comparison.quality import main as compare

SETUP = Setup(
    name="time_to_quality",
    configure=bert_like,
    arguments=lambda params: {"warmup_steps": 0.1},
    mask_rate=lambda params: 0.15,
    learning_rate=1e-3,
    swept=(5e-5, 3e-4, 1e-3, 2e-3, 4e-3),
    our_learning_rate=1e-3,
    our_budgets=(1 / 12, 1 / 6, 1 / 3, 1),
)


def main() -> None:
    compare(SETUP, __doc__)
