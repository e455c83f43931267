from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.cluster.nodes import NodeFacts, Token, check_nodes, facts_of, token_in
from clozeline.errors import ClusterError


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> NodeFacts:
    with token_in(tmp_path_factory.mktemp("shared")) as token:
        return facts_of("here", token)


def test_a_node_like_this_machine_passes(here: NodeFacts, tmp_path: Path) -> None:
    assert {"python", "clozeline", "pyarrow"} <= here.versions.keys()
    check_nodes([replace(here, node="10.0.0.2")], here, tmp_path)


@pytest.mark.parametrize("name", ["python", "clozeline", "pyarrow", "Clozeline's code"])
def test_a_node_with_another_version_is_named(here: NodeFacts, tmp_path: Path, name: str) -> None:
    other = replace(here, node="10.0.0.2", versions={**here.versions, name: "0.0"})
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2") as caught:
        check_nodes([here, other], here, tmp_path)
    assert caught.value.given == f"{name} 0.0"


def test_a_node_that_lacks_a_package_is_named(here: NodeFacts, tmp_path: Path) -> None:
    versions = {name: version for name, version in here.versions.items() if name != "ftfy"}
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2") as caught:
        check_nodes([replace(here, node="10.0.0.2", versions=versions)], here, tmp_path)
    assert caught.value.given == "ftfy missing"


def test_a_folder_that_is_not_shared_is_named(here: NodeFacts, tmp_path: Path) -> None:
    with token_in(tmp_path / "shared") as token:
        assert facts_of("here", token).reads_token
        elsewhere = facts_of("10.0.0.2", Token(tmp_path / "local" / token.path.name, token.content))
        other_file = facts_of("10.0.0.2", replace(token, content="another"))
    assert list((tmp_path / "shared").iterdir()) == []
    for facts in (elsewhere, other_file):
        with pytest.raises(ClusterError, match=r"10\.0\.0\.2") as caught:
            check_nodes([facts], here, tmp_path / "shared")
        assert str(tmp_path / "shared") in str(caught.value.given)
