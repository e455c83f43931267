"""The project of the month: the real stages on a toy language, with a model that trains in seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clozeline.versions import remote
from tests.make import projects
from tests.make.stores import BUCKET
from tests.month.scenario import Event, Night

_FOREIGN_SYLLABLES: Final = ("ky", "xo", "qu", "jä", "hü", "fö", "ñe", "ça", "øp", "åv", "ýs", "ðu")
# Share of the texts that a feed delivers which is 60 % short.
_SHORT_SHARE: Final = 0.4
PARAMS: Final[Mapping[str, Any]] = {
    "preprocess": {
        "source": {"kind": "files", "path": projects.SENTENCES.as_posix()},
        "min_characters": 20,
        "validation_fraction": 0.2,
        "holdout_fraction": 0,
    },
    "tokenize": {"vocab_size": 200},
    "recipes": {"continue": {"steps": 60, "schedule": {"warmup_fraction": 0.1}}},
    "pretrain": {
        "model": projects.TINY_MODEL,
        "max_length": 32,
        "batch_tokens": 512,
        "schedule": {"warmup_fraction": 0.03},
        "steps": 150,
        "log_every_steps": 5,
        "checkpoint_every_steps": 10,
        "num_threads": 1,
    },
    "evaluate": projects.TINY_EVALUATION,
    "export": {
        "num_agreement_texts": 100,
        "ladder": [{"weights": "int7", "exact_share": 0.0, "quantize_embeddings": True}],
        "static_ratios": [],
    },
    # Nightly models as small as these differ by 2 % by chance, beyond the default of `max_perplexity_ratio`.
    "release": {"min_unigram_ratio": 1.0, "max_perplexity_ratio": 1.1},
}
_CONTINUE: Final[Mapping[str, Any]] = {"pretrain": {"recipe": "continue"}}
# What someone commits for one night, and takes back on the next day.
_CHANGED: Final[Mapping[Event, Mapping[str, Any]]] = {
    "worse model": {"recipes": {"continue": {"optimizer": {"learning_rate": 0.5}}}},
    "better model": {"recipes": {"continue": {"steps": 240}}},
}


def make_project(root: Path, store_url: str) -> Path:
    """Write the project in `root`, with its remote in the store; nothing has run."""
    projects.copy_project(root)
    set_params(root, {})
    remote.add(root, f"s3://{BUCKET}/month", store_url)
    return root


def prepare(root: Path, night: Night) -> None:
    """Write the text and the params that the night finds."""
    texts = projects.toy_language(night.num_texts)
    if night.event == "short feed":
        texts = texts[: int(_SHORT_SHARE * len(texts))]
    elif night.event == "foreign feed":
        texts = projects.toy_language(night.num_texts, _FOREIGN_SYLLABLES)
    projects.write_sentences(root, texts)
    set_params(root, _CHANGED.get(night.event, {}), is_first=night.number == 1)


def set_params(root: Path, changes: Mapping[str, Any], *, is_first: bool = True) -> None:
    """Write params.yaml: the first night trains from random weights, every later one continues from the champion."""
    projects.write_params(root, PARAMS)
    for more in ({} if is_first else _CONTINUE, changes):
        projects.write_params(root, more, source=root / "params.yaml")
