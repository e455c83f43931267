"""Pre-training throughput against run_mlm.py's default, which joins all texts and cuts full rows of 128 tokens.

The same texts of the built-in corpus for both; theirs has no padding at all, but attends from one text into the next
and drops what is left of each map batch; ours keeps texts apart and puts rows of about equal length together. Model,
masks, optimizer, counting and the check of the loss are those of pretrain_throughput_padded.
"""

from comparison.pretrain_throughput import main_grouped


def main() -> None:
    main_grouped(__doc__, "pretrain_throughput_grouped")


if __name__ == "__main__":
    main()
