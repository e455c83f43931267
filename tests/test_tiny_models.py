"""Claim: the tokenizers of the suite's models are the same in every run."""

import json
import subprocess
import sys

from tests.conftest import PROJECT
from tests.tiny_models import SENTENCES, word_pieces

TOLD = "import json; from tests.tiny_models import *; print(json.dumps(word_pieces(SENTENCES, vocab_size=200)))"


def test_word_pieces_are_equal_in_another_process() -> None:
    other = subprocess.run([sys.executable, "-c", TOLD], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == word_pieces(SENTENCES, vocab_size=200)
