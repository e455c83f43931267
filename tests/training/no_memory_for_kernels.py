"""A test runs this in a process of its own: oneDNN makes kernels until memory runs out, then one more with memory."""

import json
import sys

import torch
from torch.nn.functional import gelu

from clozeline.training.micro_batches import noting_shortage
from tests.make.processes import at_most_more


def main() -> None:
    """Make kernels until memory runs out: each number of values needs its own."""
    gelu(torch.ones(1))
    with at_most_more(0), noting_shortage() as shortage:
        for num_values in range(2, 100):
            gelu(torch.ones(num_values))
    json.dump({"told": shortage.requested, "later": gelu(torch.ones(1000)).sum().item()}, sys.stdout)


if __name__ == "__main__":
    main()
