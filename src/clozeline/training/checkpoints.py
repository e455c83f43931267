"""Checkpoints: an interrupted training resumes from them, bit for bit.

They live outside DVC's outs, in a folder named by a fingerprint of all that the result depends on: another learning
rate, another corpus or another line of code looks in another folder and cannot pick up a stale one.

Of large models, each process writes a share of the tensors, and any number of processes reads them back (sharding.py).
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from clozeline.system import errors, files

_LOG = logging.getLogger(__name__)
# Key of a state whose tensors are in files of their own.
SHARDS = "shards"
_STATE = "state.pt"
_SEAL = "seal.json"


@dataclass(frozen=True)
class Checkpoints:
    """The newest `keep` states of one training run."""

    folder: Path
    fingerprint: str
    keep: int
    own: Path  # folder of all parts of this training

    @classmethod
    def of(cls, work: Path, fingerprint: str, keep: int, part: str = "") -> "Checkpoints":
        """Return the checkpoints in `work` of a training, or of a part of it, such as one seed."""
        name = f"{fingerprint}/{part}" if part else fingerprint
        return cls(work / name, name, keep, work / fingerprint)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state of `step` whole or not at all, then remove all but the newest `keep`.

        Raises:
            StorageError: the disk is full or read-only; earlier states are unchanged.
        """
        with self.replacing(step) as beside:
            self.seal(beside, state)

    @contextlib.contextmanager
    def replacing(self, step: int) -> Iterator[Path]:
        """Yield a folder for the state of `step`. If the block succeeds, keep it, and remove all but the newest `keep`.

        Raises:
            StorageError: as `save`.
        """
        with files.replacing_folder(self.folder / f"step-{step:09d}") as beside:
            yield beside
        for old in self._saved()[: -self.keep]:
            shutil.rmtree(old)

    def seal(self, beside: Path, state: Mapping[str, Any], shards: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write `state` and its hash. `shards`: sha256 of each file with a part of its tensors, by name."""
        _write({**state, **({SHARDS: dict(shards)} if shards else {})}, beside / _STATE)
        (beside / _SEAL).write_text(_seal_of(self.fingerprint, files.sha256_of(beside / _STATE)), encoding="utf-8")

    def load_newest(self) -> dict[str, Any] | None:
        """Return the newest intact state; None if there is none. Warn of each damaged one that is skipped.

        If its tensors are in shards, `SHARDS` names their folder.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
        """
        for saved in reversed(self._saved()):
            try:
                return self._load(saved)
            except (OSError, ValueError) as error:
                _LOG.warning("checkpoint %s is damaged and skipped: %s", saved, error)
        return None

    def remove(self) -> None:
        """Remove every state, once the training is done and its result is saved."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def warn_of_other_states(self) -> None:
        """Warn of the states of other training runs beside these: their params, inputs or code may never come back."""
        with contextlib.suppress(FileNotFoundError):  # a training that ends at this moment removes its own
            work = self.own.parent
            saved = [path for path in work.glob("**/step-*") if self.own not in path.parents]
            size_bytes = sum(file.stat().st_size for path in saved for file in path.iterdir())
            if saved:
                _LOG.warning(
                    "%s holds checkpoints of other params, inputs or code, %.1f MB in all: %s. Remove those that no run"
                    " will resume from",
                    work,
                    size_bytes / 1e6,
                    ", ".join(sorted({path.relative_to(work).parts[0] for path in saved})),
                )

    def _saved(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def _load(self, saved: Path) -> dict[str, Any]:
        text = (saved / _SEAL).read_text(encoding="utf-8")
        seal = json.loads(text)
        if not isinstance(seal, dict) or text != _seal_of(str(seal.get("fingerprint")), str(seal.get("sha256"))):
            raise ValueError(f"{_SEAL} was changed after it was written")
        if seal["fingerprint"] != self.fingerprint:
            raise errors.ArtifactError(
                f"{saved} is of another run: its fingerprint {seal['fingerprint']} is not {self.fingerprint}",
                do=f"remove {saved}: it was moved there by hand",
            )
        sha256 = files.sha256_of(saved / _STATE)
        if sha256 != seal["sha256"]:
            raise ValueError(f"its sha256 is {sha256[:12]}…, not {seal['sha256'][:12]}…")
        # Not onto the device it was saved from, which belongs to the first process.
        state: dict[str, Any] = torch.load(saved / _STATE, map_location="cpu", weights_only=True)
        for name, expected in state.get(SHARDS, {}).items():
            if (sha256 := files.sha256_of(saved / name)) != expected:
                raise ValueError(f"the sha256 of {name} is {sha256[:12]}…, not {expected[:12]}…")
        return {**state, SHARDS: saved} if SHARDS in state else state


def _seal_of(fingerprint: str, sha256: str) -> str:
    """Return the content of a seal: run and hash of a saved state, and a hash of the two.

    The last one tells damage to the seal from the seal of another run.
    """
    own_sha256 = files.sha256_of(f"{fingerprint} {sha256}".encode())
    return json.dumps({"fingerprint": fingerprint, "sha256": sha256, "own_sha256": own_sha256})


def _write(state: dict[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # torch's archive writer hides the disk's error behind its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise
