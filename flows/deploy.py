"""Makes the Prefect server agree with infra/prefect.yaml: `python -m clozeline.flows.deploy` (or `make deploy`).

`prefect deploy` alone adds and changes but never removes: a deployment keeps its last schedule when the file has none
left, and stays when the file no longer names it. This module also removes, so that every run leaves exactly what the
file says. A deployment belongs to the file if it carries `OWNED_TAG`.
"""

import logging
import os
import sys
from pathlib import Path

from clozeline.orchestration.deployments import (
    Ids,
    PrefectFile,
    deploy_all,
    ids_of,
    limit_work_queues,
    make_work_pools,
    remove_others,
    set_automations,
)
from clozeline.orchestration.prefect_adapter import read_environment
from clozeline.orchestration.servers import answering_server
from clozeline.system.errors import ClozelineError
from clozeline.system.workspace import Workspace, use_own_password

PREFECT_FILE = Path("infra/prefect.yaml")

logger = logging.getLogger(__name__)


def deploy(prefect_file: Path) -> None:
    """Apply the file: pools, queues, deployments, receivers of alerts, automations; remove what it no longer names.

    Raises:
        ParamsError: PREFECT_API_URL is not set, the server refuses the password, or an address for alerts cannot be
            used.
        TransientError: the server does not answer.
        pydantic.ValidationError: the file is invalid, or one of its deployments lacks `OWNED_TAG`,
            or an automation names a deployment or receiver that the file lacks.
        subprocess.CalledProcessError: `prefect deploy` refused; its own output says why.
    """
    file = PrefectFile.read(prefect_file)
    blocks = {receiver.name: receiver.block(os.environ) for receiver in file.receivers}
    with answering_server() as client:
        make_work_pools(client, file.deployments)
        limit_work_queues(client, file.work_queues)
        deploy_all(prefect_file)
        remove_others(client, file.deployments)
        receivers = {receiver.name: receiver.saved(client, blocks[receiver.name]) for receiver in file.receivers}
        ids: Ids = {"deployment": ids_of(client, file.deployments), "receiver": receivers}
        set_automations(client, [made for automation in file.automations if (made := automation.resolved(ids))])
    alerted = ", ".join(name for name, block in receivers.items() if block) or "nobody"
    logger.info("alerts go to: %s", alerted)
    for pool in sorted({deployment.work_pool.name for deployment in file.deployments}):
        logger.info("next, in the project's folder: python -m clozeline.flows.worker --pool %s", pool)


if __name__ == "__main__":
    # `force`, because the import of prefect sets up the root logger, for warnings only.
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    for noisy in ("httpx", "prefect"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    use_own_password(Workspace(Path.cwd()))
    read_environment()
    try:
        deploy(PREFECT_FILE)
    except ClozelineError as error:
        logger.error("error: %s", error)
        sys.exit(error.exit_code)
