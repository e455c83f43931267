"""Makes the Prefect server agree with infra/prefect.yaml: `python -m clozeline.flows.deploy` (or `make deploy`).

`prefect deploy` alone adds and changes but never removes: a deployment keeps its last schedule when the file has none
left, and stays when the file no longer names it. This module also removes, so that every run leaves exactly what the
file says. A deployment belongs to the file if it carries `OWNED_TAG`.
"""

import logging
import sys
from pathlib import Path

from clozeline.errors import ClozelineError
from clozeline.orchestration.automations import set_automations
from clozeline.orchestration.deployments import (
    PrefectFile,
    answering_server,
    deploy_all,
    ids_of,
    limit_work_queues,
    make_work_pools,
    remove_others,
)

PREFECT_FILE = Path("infra/prefect.yaml")

logger = logging.getLogger(__name__)


def deploy(prefect_file: Path) -> None:
    """Apply the file: pools, queues, deployments, automations; remove those of ours that it no longer names.

    Raises:
        ParamsError: PREFECT_API_URL is not set.
        TransientError: the server does not answer.
        pydantic.ValidationError: the file is invalid, or one of its deployments lacks `OWNED_TAG`,
            or an automation names a deployment that the file lacks.
        subprocess.CalledProcessError: `prefect deploy` refused; its own output says why.
    """
    file = PrefectFile.read(prefect_file)
    with answering_server() as client:
        make_work_pools(client, file.deployments)
        limit_work_queues(client, file.work_queues)
        deploy_all(prefect_file)
        remove_others(client, file.deployments)
        deployment_ids = ids_of(client, file.deployments)
        set_automations(client, [automation.resolved(deployment_ids) for automation in file.automations])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        deploy(PREFECT_FILE)
    except ClozelineError as error:
        logger.error("error: %s", error)
        sys.exit(error.exit_code)
