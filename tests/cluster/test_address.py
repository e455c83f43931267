"""The environment names the cluster, and whether it takes whole stages."""

import socket
from pathlib import Path

import pytest

from clozeline.cluster.address import STORE, check_reachable, cluster_address, takes_whole_stages
from clozeline.cluster.ledger import open_workers
from clozeline.cluster.store import SharedStore
from clozeline.system.errors import ParamsError, TransientError


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", None),
        ("ray://head:6379/", "head:6379"),
        ("ray://[fd00::1]:6379", "[fd00::1]:6379"),
        ("ray://auto", "auto"),
        *((given, f"not {given}") for given in ("10.0.0.1:6379", "ray://head")),
    ],
)
def test_the_environment_names_the_cluster_and_an_address_of_another_form_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: str, address: str | None
) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", given)
    if str(address).startswith("not "):
        with pytest.raises(ParamsError, match=f"CLOZELINE_CLUSTER.*{address}"):
            cluster_address()
    else:
        assert cluster_address() == address


def test_whole_stages_stay_where_the_folder_of_the_project_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://auto")
    assert takes_whole_stages({})
    assert not takes_whole_stages({STORE: "s3://team/project"})
    assert SharedStore.of_environment({STORE: " "}) is None
    monkeypatch.delenv("CLOZELINE_CLUSTER")
    assert not takes_whole_stages({})
    with open_workers(tmp_path) as workers:
        assert (list(workers.map(abs, [-1, -2])), workers.note) == ([1, 2], "")


def test_a_cluster_that_does_not_answer_may_answer_later() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TransientError, match=f"127.0.0.1:{port}"):
            check_reachable(f"127.0.0.1:{port}")
        taken.listen()
        check_reachable(f"127.0.0.1:{port}")
