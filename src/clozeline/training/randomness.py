"""Randomness in a step (dropout, skipped layers) is a function of (seed, step, rank): there is no state to keep."""

import numpy as np
import torch


def begin_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Reseed torch's random streams, on the CPU and on `device`. It takes some microseconds.

    A resumed training therefore draws the same as an uninterrupted one, on any device, though no checkpoint holds a
    random state. Each process draws for itself, though only one writes checkpoints.
    """
    stream = int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(stream)
    if device.type == "cuda":
        torch.cuda.manual_seed(stream)
