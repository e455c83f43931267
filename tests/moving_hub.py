"""A hub whose branch `main` moves to another commit after each request for a file of it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

NAME, OLD, NEW = "someone/model", "0a" * 20, "0b" * 20


class MovingHub:
    """The hub's cache with `files` in commit `OLD` of `NAME`, and nothing in `NEW`."""

    def __init__(self, cache: Path, files: Path) -> None:
        self._cache = cache
        repository = cache / f"models--{NAME.replace('/', '--')}"
        self._branch = repository / "refs" / "main"
        self._branch.parent.mkdir(parents=True)
        self._branch.write_text(OLD)
        self.files = shutil.copytree(files, repository / "snapshots" / OLD)
        (repository / "snapshots" / NEW).mkdir()

    def answer_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer every request of the hub's client and of transformers. Use it with the fixture `offline_hub`."""
        from huggingface_hub import hf_hub_download

        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(self._cache))
        for place in ("huggingface_hub", "transformers.utils.hub"):
            monkeypatch.setattr(f"{place}.hf_hub_download", self._moving_after(hf_hub_download))

    def _moving_after(self, get: Callable[..., str]) -> Callable[..., str]:
        def answer(*where: object, revision: str | None = None, **more: object) -> str:
            found = get(*where, revision=revision, **more)
            if revision not in (OLD, NEW):
                self._branch.write_text(NEW)
            return found

        return answer
