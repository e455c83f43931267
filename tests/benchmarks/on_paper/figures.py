"""The numbers of figures.yaml, by the table that they stand in."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from ruamel.yaml import YAML


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str
    kind: str  # `measured`, `published` or `assumed`
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,.10g} {self.unit}" if self.value < 1e9 else f"{self.value:.3g} {self.unit}"


_TREE = YAML(typ="safe").load(Path(__file__).with_suffix(".yaml"))


def _table(name: str) -> SimpleNamespace:
    rows = {key: (*facts, _TREE["sources"].get(source, source)) for key, (*facts, source) in _TREE[name].items()}
    return SimpleNamespace(**{key: Figure(*row) for key, row in rows.items()})


CORPUS, CLUSTER, TRAINING, SERVING, PRICES = map(_table, ("corpus", "cluster", "training", "serving", "prices"))


def figures_of(table: SimpleNamespace) -> Iterable[Figure]:
    return vars(table).values()
