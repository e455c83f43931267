"""Stage `snapshot`: copy the source as it was read, so that later changes of it do not affect the lineage of a
model.
"""

from pathlib import Path

from clozeline.corpus.sources.snapshots import take
from clozeline.params.text import PreprocessParams
from clozeline.records.snapshot import Earlier, Forgotten
from clozeline.system.files import link_or_copy, replacing_folder
from clozeline.system.machine import available_cores
from clozeline.system.workers import worker_processes
from clozeline.versions.project import last_output


def run(params: PreprocessParams, *, source: Path, forgotten: Path, out: Path) -> None:
    """Write the files of the source and their manifest into `out`; after a failure `out` is as it was.

    `forgotten`: file with the tombstones of texts to leave out.

    Raises:
        ArtifactError: `forgotten` is damaged, or its key is missing.
        DataError: the source is missing, empty, not readable, or not of its kind.
        TransientError: a server did not answer, or the source changed while it was read.
        StorageError: the disk is full.
    """
    # DVC removes `out` before it runs a stage, and then only its cache has the last snapshot.
    texts = Forgotten.read(forgotten)
    last = last_output(Path.cwd(), out)
    earlier = Earlier.among(last)
    try:
        with worker_processes(available_cores()) as workers, replacing_folder(out) as folder:
            take(params.source, source, earlier, folder, workers, texts)
    except BaseException:
        if earlier.manifest and not out.exists():
            _put_back(last, out)
        raise


def _put_back(files: dict[str, Path], out: Path) -> None:
    with replacing_folder(out) as folder:
        for name, path in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, folder / name)
