"""Copies of this project whose own stages learn a toy language: the texts are made up, everything else is real."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[1]
SENTENCES = Path("texts/sentences.jsonl")
SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "ka", "le")
TOPICS = ("baking", "mining", "sailing")
TINY_MODEL: Mapping[str, Any] = {
    "size": None,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
TINY_EVALUATION: Mapping[str, Any] = {"max_length": 32, "num_pseudo_documents": 4}
_FILES = ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "requirements.lock", "corpus.lock",
          "start.lock", "forgotten.lock")  # fmt: skip


def copy_project(root: Path) -> Path:
    """Copy the stages and their code to the new folder `root`; params.yaml and the text are still missing."""
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (root / ".dvc" / "config.local").write_text(f"[core]\n    site_cache_dir = {root.parent / 'site'}\n")
    return root


def write_params(
    root: Path, changes: Mapping[str, Any], *, tasks: Sequence[str] = (), source: Path | None = None
) -> None:
    """Write params.yaml in `root`: the one of `source`, by default of this project, with only these tasks and with
    `changes`.
    """
    yaml = YAML()
    params = yaml.load(source or PROJECT / "params.yaml")
    params["finetune"] = {name: params["finetune"][name] for name in tasks}
    params["export"]["models"] = {"encoder": "encoder"} | {name: f"finetuned/{name}" for name in tasks}
    merge(params, changes)
    yaml.dump(params, root / "params.yaml")


def merge(tree: Any, changes: Mapping[str, Any]) -> None:
    """Lay `changes` over `tree`; a key that no section has is refused when the params are read."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), Mapping):
            merge(tree[key], value)
        else:
            tree[key] = value


def write_sentences(root: Path, records: Sequence[Mapping[str, str]]) -> None:
    (root / SENTENCES).parent.mkdir(parents=True, exist_ok=True)
    (root / SENTENCES).write_text("".join(json.dumps(record) + "\n" for record in records))


def toy_language(num_texts: int, syllables: Sequence[str] = SYLLABLES) -> list[dict[str, str]]:
    """Return texts of three subject-verb-object clauses; each topic has its own nouns, and all share the verbs."""
    draw = random.Random(5)
    words = [first + second + third for first in syllables for second in syllables for third in ("n", "sh", "r")]
    draw.shuffle(words)
    nouns = {topic: words[60 * place : 60 * place + 60] for place, topic in enumerate(TOPICS)}
    verbs = words[-40:]
    records = []
    for number in range(num_texts):
        topic = TOPICS[number % len(TOPICS)]
        clauses = [
            f"the {draw.choice(nouns[topic])} {draw.choice(verbs)} a {draw.choice(nouns[topic])}" for _ in range(3)
        ]
        records.append({"text": f"{' and '.join(clauses)}.", "topic": topic})
    return records
