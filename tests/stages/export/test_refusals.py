"""Cases in which the stage writes no package and keeps the existing one."""

from pathlib import Path

import pytest

from clozeline.exporting import packaging
from clozeline.inference.tokenization import NotANumberError
from clozeline.params.delivery import ExportParams
from clozeline.stages import export
from clozeline.system.errors import ArtifactError, GateError
from tests.stages.export.conftest import ExportModel


def test_a_graph_that_fails_parity_is_refused_and_the_old_package_stays(
    params: ExportParams, small_encoder: Path, validation_texts: Path, tmp_path: Path
) -> None:
    out, metrics = tmp_path / "dist", tmp_path / "metrics.json"
    out.mkdir()
    (out / "old").write_text("old", encoding="utf-8")
    with pytest.raises(GateError, match="max_parity_difference"):
        export.run(
            params.model_copy(update={"max_parity_difference": 1e-12}),
            model=small_encoder,
            texts=validation_texts,
            lock=Path(__file__),
            out=out,
            metrics=metrics,
        )
    assert [file.name for file in tmp_path.iterdir()] == ["dist"]
    assert (out / "old").read_text(encoding="utf-8") == "old"


def test_an_export_with_non_finite_outputs_at_timing_is_refused(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version is served yet, so there is none to roll back to."""

    def no_numbers(folder: Path, **asked: object) -> None:
        raise NotANumberError("3 values are not finite", do="clozeline rollback")

    monkeypatch.setattr(packaging, "measure", no_numbers)
    with pytest.raises(ArtifactError, match="train again") as refused:
        export_model(small_encoder)
    assert str(small_encoder) in str(refused.value)
    assert "rollback" not in str(refused.value)


def test_a_missing_model_is_refused(params: ExportParams, validation_texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no model"):
        export.run(
            params,
            model=tmp_path / "nothing",
            texts=validation_texts,
            lock=Path(__file__),
            out=tmp_path / "dist",
            metrics=tmp_path / "metrics.json",
        )
