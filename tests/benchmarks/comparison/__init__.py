"""Shared code of the benchmarks next to this folder: two sides, texts for both, and the line that compares them."""

import os

# As the stages have it, for both sides: threads that spin while they wait take the cores from those that work.
# OpenMP reads this when torch is loaded, so it is said before anything here can load it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
