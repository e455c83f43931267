"""Claim: what only the head can tell is not waited for longer than the head lives."""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.cluster import nodes
from clozeline.cluster.nodes import NodeFacts, Token, answer_of_head, check_nodes, facts_of, token_in
from clozeline.cluster.store import SharedStore
from clozeline.system.errors import ClusterError, TransientError


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> NodeFacts:
    with token_in(tmp_path_factory.mktemp("shared")) as token:
        return facts_of(token, "here")


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        *((name, "0.0", f"{name} 0.0") for name in ("python", "Clozeline's code")),
        ("ftfy", None, "ftfy missing"),
    ],
)
def test_a_node_with_another_version_or_without_a_package_is_named(
    here: NodeFacts, tmp_path: Path, name: str, version: str | None, told: str
) -> None:
    check_nodes([replace(here, node="10.0.0.2")], here, tmp_path)
    versions = {known: its for known, its in {**here.versions, name: version}.items() if its}
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2") as caught:
        check_nodes([here, replace(here, node="10.0.0.2", versions=versions)], here, tmp_path)
    assert told in caught.value.problem


def test_a_folder_that_is_not_shared_is_named(here: NodeFacts, tmp_path: Path) -> None:
    with token_in(tmp_path / "shared") as token:
        assert facts_of(token, "here").reads_token
        elsewhere = facts_of(Token(tmp_path / "local" / token.path.name, token.content), "10.0.0.2")
        other_file = facts_of(replace(token, content="another"), "10.0.0.2")
    assert list((tmp_path / "shared").iterdir()) == []
    for facts in (elsewhere, other_file):
        with pytest.raises(ClusterError, match=r"10\.0\.0\.2") as caught:
            check_nodes([facts], here, tmp_path / "shared")
        assert str(tmp_path / "shared") in str(caught.value)


def test_a_node_that_does_not_reach_the_store_is_named(here: NodeFacts, tmp_path: Path) -> None:
    store, shared = SharedStore(f"file://{tmp_path}/store"), tmp_path / "shared"
    with token_in(shared, store) as token:
        there = facts_of(token, "10.0.0.2")
        check_nodes([there], facts_of(token, "here"), shared, store)
        (tmp_path / "a file").write_text("")
        elsewhere = facts_of(replace(token, store=SharedStore(f"file://{tmp_path}/a file/store")), "10.0.0.2")
        other_store = facts_of(replace(token, store=SharedStore(f"file://{tmp_path}/other")), "10.0.0.2")
    assert there.reads_token
    assert not shared.exists()
    assert store.sizes("") == {}
    for facts, told in ((elsewhere, "a file/store does not answer"), (other_store, "another file")):
        with pytest.raises(ClusterError, match=r"10\.0\.0\.2 does not reach the store") as caught:
            check_nodes([facts], here, shared, store)
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("looks", "patience_seconds", "told"),
    [
        ([True, True], 600.0, r"the cluster is gone(?s:.)*start the cluster"),
        ([True] * 10_000, 0.2, "has not answered for 0 s"),
    ],
)
def test_a_head_that_dies_or_does_not_answer_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, looks: Iterable[bool], patience_seconds: float, told: str
) -> None:
    lives = iter(looks)

    def check_head() -> None:
        if not next(lives, False):
            raise nodes.gone(ConnectionRefusedError("refused"))

    monkeypatch.setattr(nodes, "check_head", check_head)
    monkeypatch.setattr(nodes, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(nodes, "_HEAD_SECONDS", patience_seconds)
    began = time.monotonic()
    with pytest.raises(TransientError, match=told):
        answer_of_head(threading.Event().wait)
    assert time.monotonic() - began < 60
