"""Tests of benchmarks import them as the benchmarks import each other: by their names in this folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
