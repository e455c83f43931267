"""Pre-training throughput, compared with run_mlm.py's default, which joins all texts and cuts full rows of 128 tokens.

Both sides use the same texts of the built-in corpus. Theirs has no padding, but attends from one text into the next and
drops the rest of each map batch; ours keeps texts separate and batches rows of similar length. Model, masks, optimizer,
counting and the check of the loss are those of pretrain_throughput_padded.
"""

from comparison.pretrain_throughput import main_grouped


def main() -> None:
    main_grouped(__doc__, "pretrain_throughput_grouped")
