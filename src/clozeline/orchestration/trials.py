"""Trials of a release: the candidate's package against the champion's, on the items that the stages made."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from clozeline.artifacts.finetune.model.held_out import TEST_FILE, read_items
from clozeline.artifacts.lock import Lock
from clozeline.artifacts.paired_figures import PairedFigures
from clozeline.errors import ArtifactError
from clozeline.importing.built_in import are_built_in
from clozeline.inference.model_kinds import kind_of
from clozeline.params import FROM_CHAMPION, ImportParams, Params
from clozeline.registry import Registered, fetch
from clozeline.registry.trained import document_keys_of
from clozeline.storage.atomic import replacing_file
from clozeline.tokenizing.document_keys import keep_known
from clozeline.trial.trial import IncomparableError, TrialItems, incomparable, try_both
from clozeline.workspace import Workspace, tracking_uri

_VALIDATION = ("evaluate", "validation_text")
"""Stage and argument of its command that name the validation text."""
_OLD_TEXT: Final = "work/trial/old_validation.parquet"
"""Copy of those validation texts that were in the champion's snapshot too."""


@dataclass(frozen=True)
class Tried:
    """Result of a trial."""

    figures: PairedFigures | None = None
    why_not: str = ""
    """Why there are no figures, although there is a champion."""


@dataclass(frozen=True)
class Trials:
    """Trials of one package of the workspace."""

    workspace: Workspace
    params: Params
    package: str
    accept_held: bool = False
    """Whether a person has approved versions that are held."""

    def against(self, champion: Registered) -> Tried:
        """Measure the package and `champion` on the same items."""
        return self._tried(champion, self._items)

    def on_old_text(self, champion: Registered) -> Tried:
        """Measure both on the validation texts that were held out for `champion` too; only if training continues."""
        if self.params.pretrain.start != FROM_CHAMPION or self.package != self.params.encoder_package:
            return Tried()
        return self._tried(champion, lambda: self._old_items(champion))

    def _tried(self, champion: Registered, items: Callable[[], TrialItems]) -> Tried:
        try:
            theirs = fetch(f"models:/{champion.name}/{champion.version}", self.workspace).folder
            return Tried(try_both(self.workspace.root / "dist" / self.package, theirs, items()))
        except (IncomparableError, ArtifactError) as error:
            return Tried(why_not=error.cause)

    def _old_items(self, champion: Registered) -> TrialItems:
        """Return the texts of the validation split that were in the champion's: both models were never trained on them.

        Raises:
            ArtifactError: the keys of the champion's texts are missing.
            IncomparableError: no text is in both.
        """
        items, root = self._items(), self.workspace.root
        keys = document_keys_of(champion, "validation", tracking_uri(self.workspace))
        with replacing_file(root / _OLD_TEXT) as beside:
            num_texts = keep_known(root / items.validation_text, keys, beside)
        if not num_texts:
            raise incomparable(f"no text of {items.validation_text} was in the validation text of {champion}")
        return replace(items, validation_text=_OLD_TEXT)

    def _test_items(self) -> str:
        if imported := self.params.imports.get(self.package):
            if not kind_of(imported.task).is_language_model:
                self._check_own(imported)
            return imported.items
        return f"models/{self.params.export.models[self.package]}/{TEST_FILE}"

    def _check_own(self, imported: ImportParams) -> None:
        """Check that the items of an import are the user's.

        Raises:
            IncomparableError: they are built in.
        """
        items = read_items(self.workspace.root / imported.items)
        if are_built_in(items, imported.task, reads_pairs=imported.reads_pairs):
            raise incomparable(
                f"{imported.items} holds the built-in items, which cannot tell the better model;"
                " `clozeline import --labelled FILE` takes yours"
            )

    def _items(self) -> TrialItems:
        root = self.workspace.root
        stages = Lock.read(root / "dvc.lock").stages
        stage, argument = _VALIDATION
        return TrialItems(
            root=root,
            validation_text=stages[stage].argument(argument) if stage in stages else "",
            test_items=self._test_items(),
            most=self.params.release.max_trial_items,
            longest=self.params.evaluate.max_length,
        )
