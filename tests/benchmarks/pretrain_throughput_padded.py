"""Pre-training throughput on short texts, compared with run_mlm.py `--line_by_line --pad_to_max_length`.

The texts of the built-in corpus fill rows of 128 tokens by half on average. Both sides use BERT 4 × 256, a vocabulary
of 30,522, fp32, fused AdamW, 15 % targets and no dropout. A round of theirs is `Trainer.train()`, a round of ours is
our loop, both over tokenized texts with equal threads; the first steps of each round are left out. The figure is real
tokens per second ([CLS] and [SEP] count, padding does not), and a step has equally many on both sides. First, the loss
of one batch with the same weights must agree to 1e-5, because ours projects only the targets.
"""

from comparison.pretrain_throughput import main_padded


def main() -> None:
    main_padded(__doc__, "pretrain_throughput_padded")
