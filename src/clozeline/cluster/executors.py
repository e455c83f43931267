"""The executor of a stage: processes of this machine, or the cluster that the environment names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.cluster.address import reachable_cluster
from clozeline.machine.cores import available_cores
from clozeline.machine.workers import Workers, worker_processes


@contextmanager
def open_workers(shared: Path, num_processes: int | None = None, *, trains: bool = False) -> Iterator[Workers]:
    """Yield processes of this machine, or the nodes of the cluster at `CLOZELINE_CLUSTER`. The results are the same.

    Args:
        shared: folder of the project, which every node has to see at the same path.
        num_processes: of this machine; one for each core by default.
        trains: whether a task is a training, which takes all cores of a node and a GPU where there are any.

    Raises:
        ParamsError: the address has another form.
        ModuleNotFoundError: Ray is not installed.
        TransientError: the cluster does not answer.
        ClusterError: a node has other versions, or does not see `shared`.
    """
    address = reachable_cluster()  # before the import of Ray, which takes seconds
    if address is None:
        with worker_processes(num_processes or available_cores()) as workers:
            yield workers
        return
    from clozeline.cluster.ray_workers import ray_workers

    with ray_workers(address, shared, trains=trains) as workers:
        yield workers
