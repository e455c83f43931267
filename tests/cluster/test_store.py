"""Claim: nodes that share nothing but a store read what others wrote, and what it holds is checked.

tests/cluster/test_ray.py shows that stages give the bytes of one machine there.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir
from functools import partial
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from clozeline.cluster.ledger import Done, FinishedTask, Item, Ledger, open_workers
from clozeline.cluster.store import (
    STORE,
    NodeCache,
    SharedStore,
    check_reachable,
    cluster_address,
    opened,
    takes_whole_stages,
)
from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError, StorageError, TransientError
from clozeline.system.workers import Workers
from tests.make.stores import BUCKET, KEYS, ObjectStore


class Apart(Workers):
    """Workers in this process, each task in the folder of the next node. Nodes have no folder in common."""

    def __init__(self, store: SharedStore, *nodes: Path) -> None:
        super().__init__(None, 1)
        self.store = store
        self._nodes = cycle(nodes)
        for node in nodes:
            node.mkdir(exist_ok=True)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            with chdir(next(self._nodes)):
                result = function(item)
            yield result


def doubled(path: Path) -> Item:
    """Return a task that doubles the number of a file."""
    return Item(f"double of {path.name}", [str(path)], [path], partial(write_double, path))


def write_double(path: Path, folder: Path) -> Done:
    number = 2 * int(path.read_text())
    (folder / "number.txt").write_text(str(number))
    return Done({"ran in": str(Path.cwd().name), "number": number})


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with ObjectStore().serving() as served:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": served.url}.items():
            monkeypatch.setenv(name, value)
        opened.cache_clear()  # a process asks one address
        yield served


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStore:
    if request.param == "s3":
        request.getfixturevalue("object_store")
    return SharedStore(f"s3://{BUCKET}/project" if request.param == "s3" else f"file://{tmp_path}/store")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a file of the number 3."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("three.txt").write_text("3")
    return tmp_path


def ledger_of(store: SharedStore, *nodes: Path) -> Ledger:
    return Ledger(Path("work/numbers"), "code", Apart(store, *nodes))


def twice_doubled(ledger: Ledger) -> list[FinishedTask]:
    (six,) = ledger.run([doubled(Path("three.txt"))], read=())
    return [six, *ledger.run([doubled(six.folder / "number.txt")])]


def test_a_task_reads_what_another_node_wrote_and_runs_once_and_only_the_named_records_stay(
    store: SharedStore, folder: Path
) -> None:
    six, twelve = twice_doubled(ledger_of(store, folder / "one", folder / "other"))
    assert [six.facts["ran in"], twelve.facts["ran in"]] == ["one", "other"]
    assert (twelve.folder / "number.txt").read_text() == "12"
    assert not (six.folder / "number.txt").exists(), "this process did not ask for it"
    again = twice_doubled(ledger_of(store, folder / "third"))
    assert [(record.is_found, record.facts) for record in again] == [(True, six.facts), (True, twelve.facts)]
    assert list((folder / "third").iterdir()) == []
    ledger = ledger_of(store, folder / "one")
    ledger.keep_only({twelve.key})
    assert {place.split("/")[2] for place in store.sizes("numbers")} == {twelve.key}
    ledger.drop(twelve.key)
    assert store.sizes("numbers") == {}


def test_a_node_that_was_killed_before_the_record_leaves_a_task_that_runs_again(
    store: SharedStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = SharedStore.put

    def killed_at_the_record(self: SharedStore, path: Path, place: str) -> None:
        if place.endswith("record.json"):
            raise KeyboardInterrupt
        put(self, path, place)

    with monkeypatch.context() as patched:
        patched.setattr(SharedStore, "put", killed_at_the_record)
        with pytest.raises(KeyboardInterrupt):
            twice_doubled(ledger_of(store, folder / "one"))
    left = {place.rpartition("/")[2] for place in store.sizes("numbers")}
    assert ("number.txt" in left, "record.json" in left) == (True, False)
    six, twelve = twice_doubled(ledger_of(store, folder / "other"))
    assert (six.facts["number"], six.is_found, six.facts["ran in"]) == (6, False, "other")
    assert (twelve.folder / "number.txt").read_text() == "12"


@pytest.mark.parametrize(("damage", "told"), [(b"7", "1 bytes with sha256"), (None, "no such file")])
def test_a_damaged_file_is_named_and_its_task_runs_again(
    store: SharedStore, folder: Path, damage: bytes | None, told: str
) -> None:
    ledger = ledger_of(store, folder / "one", folder / "other")
    (six,) = ledger.run([doubled(Path("three.txt"))], read=())
    (place,) = (one for one in store.sizes("numbers") if one.endswith("number.txt"))
    store.remove([place]) if damage is None else store.write(place, damage)
    with pytest.raises(ArtifactError, match=r"of double of three\.txt is damaged or missing") as caught:
        list(ledger.run([doubled(six.folder / "number.txt")]))
    assert all(part in str(caught.value) for part in (place, told, f"node {os.uname().nodename} read"))
    six, twelve = twice_doubled(ledger_of(store, folder / "third"))
    assert (six.is_found, twelve.facts["number"]) == (False, 12)


def test_a_file_that_is_cut_counts_as_not_done_and_a_cached_one_that_changed_is_fetched_again(
    store: SharedStore, folder: Path
) -> None:
    _, twelve = twice_doubled(ledger_of(store, folder / "one"))
    (twelve.folder / "number.txt").write_text("13")
    _, again = twice_doubled(ledger_of(store, folder / "one"))
    assert (again.is_found, (again.folder / "number.txt").read_text()) == (True, "12")
    for place in store.sizes("numbers"):
        if place.endswith("number.txt"):
            store.write(place, b"")
    assert [record.is_found for record in twice_doubled(ledger_of(store, folder / "other"))] == [False, False]


def test_a_forged_record_writes_nothing_outside_its_folder(store: SharedStore, folder: Path) -> None:
    ledger = ledger_of(store, folder / "one")
    (six,) = ledger.run([doubled(Path("three.txt"))])
    (record,) = (place for place in store.sizes("numbers") if place.endswith("record.json"))
    told = json.loads(store.read(record) or b"")
    for name in ("../../../planted", str(folder / "planted")):
        store.write(f"{record.removesuffix('/record.json')}/{name}", b"6")
        told["sha256"][name], told["bytes"][name] = sha256(b"6").hexdigest(), 1
    store.write(record, json.dumps(told).encode())
    (again,) = ledger_of(store, folder / "other").run([doubled(Path("three.txt"))])
    assert not again.is_found, "a record that names other folders counts for nothing"
    assert not list(folder.rglob("project/**/planted"))
    assert (six.folder / "number.txt").read_text() == "6"


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("gs://bucket", ParamsError, "install gcsfs"),
        ("/folder", ParamsError, "a path without a scheme"),
        ("s3://none/x", ParamsError, "bucket does not exist"),
        ("s3://team/x", StorageError, "Access Denied"),
        ("s3://team/y", TransientError, "s3://team/y does not answer"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_at_once(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, url: str, error: type[ClozelineError], told: str
) -> None:
    object_store.num_writes_left = 0 if error is StorageError else None
    if error is TransientError:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(error) as caught:
        SharedStore.of_environment({STORE: url})
    assert told in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in caught.value.do or STORE in caught.value.do


def test_fetched_files_of_a_run_are_removed_at_its_end_or_a_day_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozeline.cluster.store.gettempdir", lambda: str(tmp_path))
    old, recent = NodeCache("old").path(), NodeCache("recent").path()
    (old / "file").write_text("fetched")
    os.utime(old, (0, 0))
    new = NodeCache("new")
    assert new.path().is_dir()
    assert not old.exists()
    assert recent.exists()
    new.clear()
    assert list(tmp_path.iterdir()) == [recent]


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
