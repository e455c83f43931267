"""Makes the Prefect server agree with infra/prefect.yaml: `python -m clozeline.flows.deploy` (or `make deploy`).

`prefect deploy` alone adds and changes but never removes: a deployment keeps its last schedule when the file has none
left, and stays when the file no longer names it. This module also removes, so that every run leaves exactly what the
file says. A deployment belongs to the file if it carries `OWNED_TAG`.
"""

import logging
import os
import sys
from pathlib import Path

from clozeline.orchestration import deployments, prefect_adapter, servers
from clozeline.system import errors, workspace

PREFECT_FILE = Path("infra/prefect.yaml")

logger = logging.getLogger(__name__)


def deploy(prefect_file: Path) -> None:
    """Apply the file: pools, queues, deployments, receivers of alerts, automations; remove what it no longer names.

    Raises:
        ParamsError: PREFECT_API_URL is not set, the server refuses the password, or an address for alerts cannot be
            used; or as `deployments.read`.
        TransientError: the server does not answer.
        subprocess.CalledProcessError: `prefect deploy` refused; its own output says why.
    """
    file = deployments.read(prefect_file)
    wanted, receivers = file["deployments"], file["receivers"]
    blocks = {receiver["name"]: deployments.block_of(receiver, os.environ) for receiver in receivers}
    with servers.answering_server() as client:
        deployments.make_work_pools(client, wanted)
        deployments.limit_work_queues(client, file["work_queues"])
        deployments.deploy_all(prefect_file)
        deployed = deployments.remove_others(client, wanted)
        saved = {one["name"]: deployments.saved(one, client, blocks[one["name"]]) for one in receivers}
        ids: deployments.Ids = {"deployment": deployed, "receiver": saved}
        made = [deployments.resolved(automation, ids) for automation in file["automations"]]
        deployments.set_automations(client, [automation for automation in made if automation])
    logger.info("alerts go to: %s", ", ".join(name for name, block in saved.items() if block) or "nobody")
    for pool in deployments.work_pools(wanted):
        logger.info("next, in the project's folder: python -m clozeline.flows.worker --pool %s", pool)


if __name__ == "__main__":
    # `force`, because the import of prefect sets up the root logger, for warnings only.
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    for noisy in ("httpx", "prefect"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    workspace.use_own_password(workspace.Workspace(Path.cwd()))
    prefect_adapter.read_environment()
    try:
        deploy(PREFECT_FILE)
    except errors.ClozelineError as error:
        logger.error("error: %s", error)
        sys.exit(error.exit_code)
