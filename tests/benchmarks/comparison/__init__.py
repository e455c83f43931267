"""Shared code of the benchmarks next to this folder: two sides, texts for both, and the line that compares them."""

import os

# As in the stages, for both sides: threads that spin while they wait take cores from working threads. OpenMP reads this
# when torch is loaded, so it is set before any import here can load torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
