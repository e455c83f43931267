"""What is random in a step (dropout, skipped layers) is a function of who the step is: no state to keep or to lose."""

import numpy as np
import torch


def begin_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Begin torch's random streams anew, on the CPU and on `device`.

    So a training that was killed draws what one that was not does, on any device, though no checkpoint holds a random
    state; and each process draws for itself, though one of them writes for all. It takes some microseconds.
    """
    stream = int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(stream)
    if device.type == "cuda":
        torch.cuda.manual_seed(stream)
