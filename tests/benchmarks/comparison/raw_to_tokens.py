"""One side of tokenize_throughput, once, in a process of its own: writes its seconds.

It is run with `python -m`, as the stages are: worker processes then do not import their parent's program.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from comparison.frame import available_cores, report_progress

_LOG = logging.getLogger(__name__)
_MAX_LENGTH = 128


def ours_seconds(raw: Path, tokenizer: Path) -> float:
    """Stages snapshot, preprocess and tokenize, called as dvc.yaml's processes call them, imports left out."""
    from clozeline.params.project import Params
    from clozeline.stages import preprocess, snapshot, tokenize
    from comparison.stages import params_tree, paths_of

    changes = {
        "preprocess": {"source": {"kind": "files", "text_field": "text"}},
        "tokenize": {"algorithm": "existing", "existing": str(tokenizer)},
    }
    params = Params.model_validate(params_tree(changes))
    with TemporaryDirectory() as name:
        folder = Path(name)
        none = folder / "forgotten.lock"
        started = time.perf_counter()
        snapshot.run(params.preprocess, source=raw, forgotten=none, **paths_of("snapshot", folder, folder))
        preprocess.run(params.preprocess, seed=0, forgotten=none, **paths_of("preprocess", folder, folder))
        _LOG.info("ours: snapshot and preprocess took %.1f s", time.perf_counter() - started)
        tokenize.run(params.tokenize, **paths_of("tokenize", folder, folder))
        seconds = time.perf_counter() - started
        _LOG.info("ours: all three stages took %.1f s", seconds)
        return seconds


def theirs_seconds(raw: Path, tokenizer: Path) -> float:
    """`load_dataset`, then both maps of run_mlm, with `--preprocessing_num_workers` at the number of cores."""
    import datasets

    from comparison import run_mlm

    opened = run_mlm.open_tokenizer(tokenizer)
    datasets.disable_progress_bars()
    with TemporaryDirectory() as cache:
        started = time.perf_counter()
        texts = datasets.load_dataset("json", data_files=str(raw), split="train", cache_dir=cache)
        _LOG.info("theirs: load_dataset took %.1f s", time.perf_counter() - started)
        rows = run_mlm.grouped(texts, opened, _MAX_LENGTH, available_cores())
        seconds = time.perf_counter() - started
        _LOG.info("theirs: everything took %.1f s, %s rows", seconds, f"{len(rows):,}")
        return seconds


SIDES: dict[str, Callable[[Path, Path], float]] = {"ours": ours_seconds, "theirs": theirs_seconds}


def main() -> None:
    report_progress()
    side, raw, tokenizer = sys.argv[1:]
    sys.stdout.write(f"{SIDES[side](Path(raw), Path(tokenizer))}\n")


if __name__ == "__main__":
    main()
