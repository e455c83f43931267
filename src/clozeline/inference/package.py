"""Opens a package (`dist/<model>/`): checks its files against the manifest, then answers with it."""

from pathlib import Path

from clozeline.artifacts.manifest import FILES, GRAPHS, Manifest, Precision, data_file, read_manifest, verify
from clozeline.errors import ArtifactError
from clozeline.inference.batching import BATCH_TOKENS
from clozeline.inference.model_kinds import kind_of
from clozeline.inference.open_model import OpenModel
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import TextTokenizer


def load(
    folder: Path, *, precision: Precision | None = None, num_threads: int = 1, batch_tokens: int = BATCH_TOKENS
) -> OpenModel:
    """Open the package in `folder`; what comes back can be used from many threads at once.

    Args:
        folder: with the files of `manifest.FILES`.
        precision: which of the two graphs answers; None: the one that the manifest says is to be served.
        num_threads: cores that one run may use. Many texts go fastest with 1 here and a thread per core outside;
            one short text answers soonest with every core here.
        batch_tokens: most tokens that run together, padding among them.

    Raises:
        ArtifactError: a file is missing, its bytes are not those that were exported, or there is no INT8 graph
            because none passed its checks.
    """
    manifest = read_manifest(folder)
    graph = GRAPHS[precision or manifest.served]
    if graph not in manifest.files:
        raise ArtifactError(
            f"{folder} has no graph in {precision}",
            given=f"{len(manifest.ladder)} INT8 schemes were tried, and none passed: see `ladder` in {FILES.manifest}",
            expected=f"one of: {', '.join(manifest.precisions)}",
            do="leave the precision out: fp32 answers; or change `export.ladder` in params.yaml and export again",
        )
    names = [name for name in (graph, data_file(graph), FILES.tokenizer) if name in manifest.files]
    verify(folder, manifest, names)
    return open_graph(folder / graph, manifest, num_threads=num_threads, batch_tokens=batch_tokens)


def open_graph(
    path: Path, manifest: Manifest, *, num_threads: int = 1, batch_tokens: int = BATCH_TOKENS, wide_sums: bool = False
) -> OpenModel:
    """Open one graph beside its tokenizer.json, whatever its bytes; `wide_sums` as of `GraphSession`."""
    tokenizer = TextTokenizer(
        path.parent / FILES.tokenizer,
        max_length=manifest.max_length,
        mask_id=manifest.special_tokens.mask_id,
        types_tell_pairs=manifest.types_tell_pairs,
    )
    session = GraphSession(path, input_names=manifest.input_names, num_threads=num_threads, wide_sums=wide_sums)
    return kind_of(manifest.task).model(manifest, tokenizer, session, batch_tokens=batch_tokens)
