"""Cost of one percent more text: seconds of preprocess and tokenize with what the last run kept, and from scratch.

Theirs is our own run from scratch over the grown corpus. The tokenizer stays, as in a night that continues from the
champion. Both sides have to write the same bytes. The text is the built-in corpus (or what CLOZELINE_BENCHMARK_TEXT
names) as raw JSON Lines; the last hundredth of its lines is the new text. Each stage is a process of its own.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from comparison.frame import alternate, available_cores, options, report
from comparison.stages import digest_of, paths_of, run_stage
from comparison.texts import news, raw_texts

SHARE = 100
STAGES = ("preprocess", "tokenize")


def main() -> None:
    chosen = options(__doc__, rounds=3).parse_args()
    source = news()
    lines = raw_texts(source, every=1).read_bytes().splitlines(keepends=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        night = _Night(folder, lines)
        night.before()
        rounds = alternate(night.with_kept, night.from_scratch, chosen.rounds, "s")
        facts = {
            "text": source.name,
            "raw_bytes": sum(map(len, lines)),
            "bytes_equal": len(set(night.digests)) == 1,
            "seconds": night.seconds,
        }
        report("corpus_increment", rounds, available_cores(), facts)


class _Night:
    """A corpus before and after the new text, and the stages over it."""

    def __init__(self, folder: Path, lines: list[bytes]) -> None:
        self._folder = folder
        self._tokenizer: Path | None = None
        self.digests: list[str] = []
        self.seconds: dict[str, list[float]] = {}
        """Seconds of each side and stage."""
        new = len(lines) // SHARE
        for name, texts in {"before": lines[:-new], "grown": lines}.items():
            path = folder / name / "texts.jsonl"  # the name is the label of the texts
            path.parent.mkdir()
            path.write_bytes(b"".join(texts))
            run_stage("snapshot", folder, self._changes, source=path, out=folder / f"{name}-raw")

    def before(self) -> None:
        """Run twice over the corpus without the new text: the second run takes the tokenizer that the first learned."""
        self._run("before", "learned", self._folder / "kept")
        self._tokenizer = self._folder / "tokenizer"
        shutil.copytree(self._folder / "made-learned" / "tokenizer", self._tokenizer)
        self._run("before", "first", self._folder / "kept")

    def with_kept(self, _: int) -> float:
        kept = self._folder / "kept-copy"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._folder / "kept", kept)
        return self._timed("with kept", kept)

    def from_scratch(self, _: int) -> float:
        shutil.rmtree(self._folder / "none", ignore_errors=True)
        return self._timed("from scratch", self._folder / "none")

    def _timed(self, side: str, kept: Path) -> float:
        seconds = self._run("grown", "grown", kept)
        for stage, spent in seconds.items():
            self.seconds.setdefault(f"{side}, {stage}", []).append(round(spent, 2))
        self.digests.append(digest_of(self._folder / "made-grown"))
        return sum(seconds.values())

    def _run(self, raw: str, out: str, kept: Path) -> dict[str, float]:
        made, seconds = self._folder / f"made-{out}", {}
        for stage in STAGES:
            paths = paths_of(stage, made, kept) | {"metrics": made / f"{stage}.json"}
            if stage == "preprocess":
                paths["raw"] = self._folder / f"{raw}-raw"
            seconds[stage] = run_stage(stage, self._folder, self._changes, **paths).seconds
        return seconds

    @property
    def _changes(self) -> dict[str, object]:
        source = {"kind": "files", "path": "texts", "text_field": "text"}
        existing = {} if self._tokenizer is None else {"algorithm": "existing", "existing": str(self._tokenizer)}
        return {"preprocess": {"source": source}, "tokenize": existing}
