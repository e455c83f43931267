"""Pre-training throughput on short texts, against run_mlm.py with `--line_by_line --pad_to_max_length`.

Texts of the built-in corpus that fill rows of 128 tokens to a half; BERT 4 × 256, vocabulary 30,522, fp32, AdamW
(fused on both sides), 15 % targets, no dropout. A round of theirs is `Trainer.train()`, a round of ours is our loop,
both over texts they have tokenized before; equal threads, the first steps of each round left out. What is counted is
real tokens (padding is none, [CLS] and [SEP] are) a second, and a step holds as many of them on both sides. Before it
all, the loss of one batch under the same weights must agree to 1e-5: ours projects the targets alone.
"""

from comparison.pretrain_throughput import main_padded


def main() -> None:
    main_padded(__doc__, "pretrain_throughput_padded")


if __name__ == "__main__":
    main()
