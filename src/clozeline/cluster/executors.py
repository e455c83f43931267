"""The executor of a stage: processes of this machine, or the cluster that the environment names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.cluster.address import reachable_cluster
from clozeline.cluster.store import Store
from clozeline.machine.cores import available_cores
from clozeline.machine.workers import Workers, worker_processes


@contextmanager
def open_workers(shared: Path, num_processes: int | None = None, *, trains: bool = False) -> Iterator[Workers]:
    """Yield processes of this machine, or the nodes of the cluster at `CLOZELINE_CLUSTER`. The results are the same.

    Args:
        shared: folder of the project, which every node has to see at the same path.
        num_processes: of this machine; one for each core by default.
        trains: whether a task is a training, which takes all cores of a node and a GPU where there are any. It
            needs the shared folder; others may have the store at `CLOZELINE_CLUSTER_STORE` instead.

    Raises:
        ParamsError: the address has another form, or the store.
        StorageError: nothing can be written to the store.
        ModuleNotFoundError: Ray is not installed.
        TransientError: the cluster does not answer, or the store.
        ClusterError: a node has other versions, or does not see `shared`, or the store.
    """
    address = reachable_cluster()  # before the import of Ray, which takes seconds
    if address is None:
        with worker_processes(num_processes or available_cores()) as workers:
            yield workers
        return
    store = None if trains else Store.of_environment()
    from clozeline.cluster.ray_workers import ray_workers

    with ray_workers(address, shared, store, trains=trains) as workers:
        yield workers
