"""Bring the project's text and tokens up to date for experiments."""

from typing import Final

from clozeline.experiments.corpus import Corpus, held
from clozeline.orchestration.run_lock import run_lock
from clozeline.versions.graph import read_stage_graph
from clozeline.workspace import Workspace

_LAST_STAGE: Final = "tokenize"


def shared_corpus(workspace: Workspace) -> Corpus:
    """Return the text and tokens of the project's params.yaml; stages that are out of date run first.

    Raises:
        ClozelineError: as the flow `pipeline`.
    """
    if any(node.is_changed for node in read_stage_graph(workspace.root, only=_LAST_STAGE)):
        from clozeline.flows.pipeline import pipeline
        from clozeline.orchestration.temporary_server import ensure_prefect_server

        ensure_prefect_server(workspace)
        pipeline(workspace.root, only=_LAST_STAGE)
    with run_lock(workspace.lock_file):
        return held(workspace.root, workspace.experiments)
