"""contract.lock: profiles of the data that the last accepted run was trained on, compared with those of a new run.

The check comes before a training starts, and records what it accepted. It belongs to the command of a stage, not to its
code: it changes no output, so an edit of it re-runs nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from clozeline.params.project import Params
from clozeline.params.text import ContractParams
from clozeline.records import clean_text, record
from clozeline.records.finetune.statistics import stability_index
from clozeline.records.limits import Limit
from clozeline.stages.calling.profiles import LabelProfile, TextProfile
from clozeline.system import errors, files

FILE = "contract.lock"
_LAST = "last accepted {}"
_NO_LABELS: Mapping[str, LabelProfile] = {}
# Increase of the share of documents dropped for one reason.
MAX_DROPPED_INCREASE = 0.2
# Change of the share of letters of one script, such as Latin.
MAX_SCRIPT_SHIFT = 0.1
# Cosine of the frequencies of character trigrams; that of another language is below 0.6.
MIN_LANGUAGE_SIMILARITY = 0.7
# Population stability index of the lengths of texts; 0.25 is usually called a large shift.
MAX_LENGTH_INDEX = 0.25
# Population stability index of the shares of unknown tokens of texts, if their share of all has grown.
MAX_UNKNOWN_INDEX = 0.1
# Share of labelled texts whose copies have different labels.
MAX_CONFLICT_SHARE = 0.05
# Population stability index of the classes of labelled texts.
MAX_CLASS_INDEX = 0.25
# Least number of sampled or labelled texts for a comparison of distributions: with fewer, the stability index is noise.
_LEAST_TEXTS = 200


class Accepted(record.Record, extra="ignore"):
    """Content of contract.lock. It belongs in git, beside dvc.lock."""

    text: TextProfile | None = None
    labels: Mapping[str, LabelProfile] = {}  # profile of the labelled data by task

    @classmethod
    def in_project(cls, root: Path) -> Self:
        """Read the file of the project in `root`; return an empty record if it is missing.

        Raises:
            ArtifactError: the file is damaged.
        """
        do = "restore it (`git checkout contract.lock`), or remove it to accept the data of the next run"
        return cls.read(root / FILE, absent=cls(), do=do)

    @classmethod
    def add(
        cls, root: Path, *, text: TextProfile | None = None, labels: Mapping[str, LabelProfile] = _NO_LABELS
    ) -> None:
        """Add profiles to the file, or replace them. Stages that run side by side add one after the other."""
        lock = root / "work" / "contract.alone"
        lock.parent.mkdir(exist_ok=True)
        with files.alone(lock):
            before = cls.in_project(root)
            cls(text=text or before.text, labels={**before.labels, **labels}).write(root / FILE, indent=1)


def text_limits(params: ContractParams, now: TextProfile, accepted: TextProfile | None) -> Iterator[Limit]:
    """Yield the limits of the text; without accepted text, only those that need none."""
    yield Limit.at_least("documents", now.documents, params.min_documents)
    if params.max_documents is not None:
        yield Limit.at_most("documents", now.documents, params.max_documents)
    if accepted is None:
        return
    least = (1 - params.max_missing_share) * accepted.documents
    yield Limit.at_least("documents", now.documents, least, note=_LAST.format(f"{accepted.documents:,}"))
    for reason, share in now.dropped_shares.items():
        was = accepted.dropped_shares.get(reason, 0.0)
        most, note = was + MAX_DROPPED_INCREASE, _LAST.format(f"{was:.4f}")
        yield Limit.at_most(f"share dropped as {reason}", share, most, note=note)
    if min(now.num_sampled, accepted.num_sampled) < _LEAST_TEXTS:
        return
    for script in sorted({*now.script_shares, *accepted.script_shares}):
        share, was = now.script_shares.get(script, 0.0), accepted.script_shares.get(script, 0.0)
        note = _LAST.format(f"{was:.4f}")
        yield Limit.at_most(f"change of the share of {script} letters", abs(share - was), MAX_SCRIPT_SHIFT, note=note)
    similarity = now.language_similarity(accepted)
    yield Limit.at_least("similarity of character trigrams", similarity, MIN_LANGUAGE_SIMILARITY)
    index = stability_index(accepted.texts_by_length, now.texts_by_length)
    yield Limit.at_most("stability index of lengths", index, MAX_LENGTH_INDEX)
    if accepted.texts_by_unknown and now.unknown_rate > accepted.unknown_rate:  # fewer are no fault
        index = stability_index(accepted.texts_by_unknown, now.texts_by_unknown)
        note = f"{accepted.unknown_rate:.2%} of all tokens before, {now.unknown_rate:.2%} now"
        yield Limit.at_most("stability index of unknown tokens by text", index, MAX_UNKNOWN_INDEX, note=note)


def label_limits(params: ContractParams, now: LabelProfile, accepted: LabelProfile | None) -> Iterator[Limit]:
    """Yield the limits of the labels of a task."""
    yield Limit.at_most("share of texts with conflicting labels", now.conflict_share, MAX_CONFLICT_SHARE)
    if accepted is None:
        return
    if min(now.num_texts, accepted.num_texts) >= _LEAST_TEXTS:
        index = stability_index(accepted.texts_by_label, now.texts_by_label)
        yield Limit.at_most("stability index of classes", index, MAX_CLASS_INDEX)
    changed, most = now.changed_test_rows(accepted), params.max_changed_test_rows
    yield Limit.at_most("share of accepted test rows that are gone or relabelled", changed, most)


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
            _require("the text", text_limits(params.contract, text, Accepted.in_project(root).text))
        yield
        if text is not None:
            Accepted.add(root, text=text)
        return
    section = params.finetune.get(task or "") if stage == "finetune" else None
    labels = None
    if data is not None and section is not None and section.hub is None:
        labels = LabelProfile.of_data(section, root / data)
    if task is None or labels is None:
        yield
        return
    known = Accepted.in_project(root).labels.get(task)
    _require(f"the labels of task `{task}`", label_limits(params.contract, labels, known))
    yield
    Accepted.add(root, labels={task: labels})


def _text_profile(root: Path) -> TextProfile | None:
    """Return the profile of the text that the stages have made; None if dvc.lock does not name its files."""
    if not (root / "dvc.lock").is_file():
        return None
    stages = record.Lock.read(root / "dvc.lock").stages
    if not {"preprocess", "tokenize"} <= set(stages):
        return None
    preprocess, tokenize = stages["preprocess"], stages["tokenize"]
    return TextProfile.of_files(
        preprocess=root / preprocess.argument("metrics"),
        tokenize=root / tokenize.argument("metrics"),
        train=clean_text.file_of(root / preprocess.argument("out"), "train"),
        tokens=root / tokenize.argument("out"),
    )


def _require(what: str, limits: Iterator[Limit]) -> None:
    if found := [limit for limit in limits if not limit.is_passed]:
        raise errors.ContractError(
            f"{what} differs too much from what the last accepted run was trained on: nothing is trained",
            given="\n         ".join(map(str, found)),
            do=f"check the source; if the data are right, remove {FILE} (or change `contract`) and run again",
        )
