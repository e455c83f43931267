"""Check of the contract before a training starts, and the record of what it accepted.

The check belongs to the command of a stage, not to its code: it changes no output, so an edit of it re-runs nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clozeline.artifacts.lock import Lock
from clozeline.artifacts.preprocess.clean_text import file_of
from clozeline.contract.accepted import FILE, Accepted
from clozeline.contract.findings import Clause, broken, label_clauses, text_clauses
from clozeline.contract.label_profile import LabelProfile
from clozeline.contract.labelled_items import LABELLED
from clozeline.contract.text_profile import TextProfile
from clozeline.errors import ContractError
from clozeline.params import Params


@contextmanager
def under_contract(stage: str, task: str | None, data: Path | None, params: Params, root: Path) -> Iterator[None]:
    """Check the data of a training before the block, and record them as accepted after it.

    `pretrain` checks the text, `finetune` the labels of its task. Any other stage has no contract.

    Raises:
        ContractError: the data break the contract; nothing was trained.
        ArtifactError: contract.lock is damaged.
    """
    if stage == "pretrain":
        text = _text_profile(root)
        if text is not None:
            _require("the text", list(text_clauses(params.contract, text, Accepted.read(root).text)))
        yield
        if text is not None:
            Accepted.add(root, text=text)
        return
    section = params.finetune.get(task or "") if stage == "finetune" else None
    if task is None or data is None or not isinstance(section, LABELLED) or section.hub is not None:
        yield
        return
    labels = LabelProfile.read(section, root / data)
    known = Accepted.read(root).labels.get(task)
    _require(f"the labels of task `{task}`", list(label_clauses(params.contract, labels, known)))
    yield
    Accepted.add(root, labels={task: labels})


def _text_profile(root: Path) -> TextProfile | None:
    """Return the profile of the text that the stages have made; None if dvc.lock does not name its files."""
    if not (root / "dvc.lock").is_file():
        return None
    stages = Lock.read(root / "dvc.lock").stages
    if not {"preprocess", "tokenize"} <= set(stages):
        return None
    preprocess, tokenize = stages["preprocess"], stages["tokenize"]
    return TextProfile.read(
        preprocess=root / preprocess.argument("metrics"),
        tokenize=root / tokenize.argument("metrics"),
        train=file_of(root / preprocess.argument("out"), "train"),
        tokens=root / tokenize.argument("out"),
    )


def _require(what: str, clauses: Sequence[Clause]) -> None:
    if found := broken(clauses):
        raise ContractError(
            f"{what} differs too much from what the last accepted run was trained on: nothing is trained",
            given="\n         ".join(map(str, found)),
            do=f"check the source; if the data are right, remove {FILE} (or change `contract`) and run again",
        )
