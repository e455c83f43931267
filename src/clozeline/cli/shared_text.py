"""Bring the project's text and tokens up to date for experiments."""

from clozeline.cluster.address import reachable_cluster
from clozeline.lab.experiment import Corpus, held
from clozeline.system.workspace import Workspace, run_lock
from clozeline.versions.graph import read_stage_graph


def shared_corpus(workspace: Workspace, *, with_encoder: bool = False) -> Corpus:
    """Return the text and tokens of the project's params.yaml; stages that are out of date run first.

    `with_encoder`: also the encoder, for experiments that fine-tune it.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` names no cluster.
        TransientError: the cluster does not answer.
        ClozelineError: as the flow `pipeline`.
    """
    reachable_cluster()  # the flow would start each stage again and again, for minutes
    last_stage = "pretrain" if with_encoder else "tokenize"
    if any(node.is_changed for node in read_stage_graph(workspace.root, only=last_stage)):
        from clozeline.flows.pipeline import pipeline
        from clozeline.orchestration.servers import ensure_prefect_server

        ensure_prefect_server(workspace)
        pipeline(workspace.root, only=last_stage)
    with run_lock(workspace.lock_file):
        return held(workspace.root, workspace.experiments, with_encoder=with_encoder)
