from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from clozeline.records.published import Published, published_folder, resolved
from clozeline.system.errors import ArtifactError, DataError, TransientError


def test_a_folder_needs_no_hub(tmp_path: Path) -> None:
    assert resolved(str(tmp_path)) == Published(str(tmp_path), None)


@pytest.mark.parametrize("name", ["./missing", "/nowhere/at/all", "a/b/c"])
def test_a_path_that_is_no_folder_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(ArtifactError, match="no folder with a model"):
        resolved(name)


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="leave `--revision` out"):
        resolved(str(tmp_path), "main")


@pytest.mark.parametrize(
    ("fault", "expected", "told"),
    [
        (GatedRepoError, ArtifactError, "accept the conditions"),
        (RepositoryNotFoundError, ArtifactError, "correct the name"),
        (RevisionNotFoundError, ArtifactError, "correct `--revision`"),
        (ConnectionError, TransientError, "the hub does not answer"),
        (RuntimeError, TransientError, "the hub does not answer"),
    ],
)
def test_an_answer_of_the_hub_is_one_error(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception], expected: type[Exception], told: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise fault.__new__(fault)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    with pytest.raises(expected, match=told):
        resolved("someone/model", "main")


@pytest.mark.usefixtures("offline_hub")
def test_an_unknown_name_without_a_network_is_one_error() -> None:
    with pytest.raises(TransientError, match="the hub does not answer"):
        resolved("someone/unknown")


def test_the_folder_of_an_import_holds_only_the_files_that_were_hashed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "1_Pooling/config.json", "other.bin"):
        (model / name).write_text(name)
    hashes = Published(str(model), None).sha256()
    with published_folder(str(model), None, hashes) as folder:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert found == set(hashes) == {"config.json", "1_Pooling/config.json"}


def test_an_error_about_the_files_names_the_model_and_not_their_copy(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hashes = Published(str(tmp_path), None).sha256()
    with pytest.raises(DataError) as raised, published_folder(str(tmp_path), None, hashes) as folder:
        raise DataError(f"{folder}: no", given=folder / "config.json", expected=f"{folder}", do=f"look at {folder}")
    assert str(folder) not in str(raised.value)
    assert str(raised.value).count(str(tmp_path)) == 4


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hashes = Published(str(tmp_path), None).sha256()
    (tmp_path / "config.json").write_text("{ }")
    with (
        pytest.raises(ArtifactError, match="is not the file that was imported"),
        published_folder(str(tmp_path), None, hashes),
    ):
        pass
