"""A release moves the champion only on evidence, and repeating it changes nothing."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pytest
from mlflow.tracking import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from clozeline.flows.nightly import nightly
from clozeline.flows.release import Release, release
from clozeline.inference import latency
from clozeline.orchestration.prefect_adapter import RETRIES
from clozeline.orchestration.trials import PackageTrials, Tried
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.package_metrics import MetricPaths, PackageMetrics
from clozeline.records.record import NATS_PER_BYTE
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS, Registered
from clozeline.registry.publishing import Publisher
from clozeline.registry.signature import SIGNING_KEY, check_signature
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError, DataError, GateError, TransientError
from clozeline.system.workspace import Workspace
from tests.make.projects import make_release_project, retrain, write_metrics
from tests.make.texts import paired_figures
from tests.registry.test_signature import allow, make_key

pytestmark = pytest.mark.usefixtures("prefect_server")
ENCODER, LIBRARY = "clozeline-encoder", "clozeline-library"
BETTER = {"nats_per_byte": 1.2, "accuracy": 0.85}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, encoder_package: Path, classifier_package: Path) -> Path:
    """A project with two packages."""
    root = tmp_path_factory.mktemp("template") / "project"
    packages = {"encoder": encoder_package, "library": classifier_package}
    return make_release_project(root, packages)


@pytest.fixture(scope="module")
def released_template(prefect_server: None, template: Path) -> Path:
    """The same project, released once. A copy keeps its versions, because its database finds the copied files."""
    root = shutil.copytree(template, template.parent / "released", symlinks=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        assert outcomes(release(root)) == both("1", "promoted")
    return root


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "project", symlinks=True)


@pytest.fixture
def released(released_template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(released_template, tmp_path / "project", symlinks=True)


@pytest.fixture(autouse=True)
def steady_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times as of an idle machine: on a busy one, each release measures many rounds. `released_template` measures."""
    times = latency.Latency(2.0, 1.0, 20.0, 10.0, batch_texts=32, num_threads=1)
    monkeypatch.setattr(latency, "measure", lambda folder: times)


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that read the figures of both from metric files, because every package here holds the same weights.

    The interval is 0.002 wide; a validation text with `unreadable` in it cannot be answered by the champion.
    """

    def against(self: PackageTrials, champion: Registered) -> Tried:
        root = self.workspace.root
        if "unreadable" in (root / "validation.parquet").read_text():
            return Tried(why_not="no item in common")
        paths = MetricPaths.of(self.package, self.params.export.models[self.package])
        ours = PackageMetrics.read(root / "metrics", paths).quality
        with Publisher(address(root)).evidence(champion) as evidence:
            theirs = PackageMetrics.read(evidence / "metrics", paths).quality
        if isinstance(ours, EncoderMetrics) and isinstance(theirs, EncoderMetrics):
            metric, one, other = NATS_PER_BYTE, ours.nats_per_byte, theirs.nats_per_byte
        else:
            metric, one, other = ours.headline.metric, ours.headline.value, theirs.headline.value
        sha256 = hashlib.sha256((root / "validation.parquet").read_bytes()).hexdigest()
        return Tried(paired_figures(metric, one, other, 0.001, items="validation.parquet", items_sha256=sha256))

    monkeypatch.setattr(PackageTrials, "against", against)


def address(root: Path) -> str:
    return Workspace(root).defaults()["MLFLOW_TRACKING_URI"]


def registry(root: Path) -> Registry:
    return Registry.open(address(root))


def aliases(root: Path, name: str = ENCODER) -> dict[str, str]:
    found = {alias: registry(root).at(name, alias) for alias in (CANDIDATE, CHAMPION, PREVIOUS)}
    return {alias: version.version for alias, version in found.items() if version}


def outcomes(releases: list[Release]) -> dict[str, tuple[str, str]]:
    return {made.package: (made.version, made.outcome) for made in releases}


def both(version: str, outcome: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(("encoder", "library"), (version, outcome))


def decision(root: Path, name: str, version: str) -> dict[str, object]:
    found = registry(root).version(name, version)
    client = MlflowClient(address(root))
    newest = max(file.path for file in client.list_artifacts(found.run_id, "decisions"))
    record: dict[str, object] = json.loads(Path(client.download_artifacts(found.run_id, newest)).read_text())
    return record


def test_a_first_release_makes_loadable_champions_and_a_second_changes_nothing(project: Path) -> None:
    assert outcomes(release(project)) == both("1", "promoted")
    assert outcomes(release(project)) == both("1", "unchanged")
    assert aliases(project) == aliases(project, LIBRARY) == {CHAMPION: "1"}
    client = MlflowClient(address(project))
    assert "Source files, with their DVC hashes:" in client.get_model_version(LIBRARY, "1").description
    (answer,) = mlflow.pyfunc.load_model(f"models:/{ENCODER}@champion").predict(["a [MASK]"])
    assert len(answer["masks"]) == 1


def test_fp32_is_served_until_a_release_clearly_measures_int8_as_faster(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = latency.Latency(1.0, 1.5, 10.0, 9.0, batch_texts=32, num_threads=1)
    quiet = replace(times, int8_text_milliseconds=0.5)
    noisy = replace(quiet, num_rounds=9, lowest_int8_speedup=0.6, highest_int8_speedup=2.0)

    def released_with(measured: latency.Latency) -> Release:
        monkeypatch.setattr(latency, "measure", lambda folder: measured)
        return release(project)[0]

    first = released_with(times)
    assert (first.outcome, first.served) == ("promoted", "fp32")
    assert "INT8 is 0.66 × as fast as fp32" in first.why_fp32
    assert decision(project, ENCODER, "1")["served"] == "fp32"
    again = released_with(noisy)
    assert (again.served, registry(project).at(ENCODER, CHAMPION).served) == ("fp32", "fp32")
    assert "INT8 is 0.66 × as fast as fp32" in again.why_fp32, "the figure of the decision, not a new one"
    assert "0.60 to 2.00 in 9 rounds, which disagree" in again.log_lines[-1]
    for measured, precision in ((times, "fp32"), (quiet, "int8")):
        assert released_with(measured).outcome == "unchanged"
        assert registry(project).at(ENCODER, CHAMPION).served == precision
    monkeypatch.setattr("clozeline.orchestration.release.processor", lambda: "Another CPU, avx2")
    assert released_with(noisy).served == "int8"
    assert registry(project).at(ENCODER, CHAMPION).served_on == "Another CPU, avx2"


def test_a_better_model_of_new_text_is_promoted_and_signed_and_its_decision_is_recorded(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIGNING_KEY, str(make_key(released / "ada")))
    retrain(released, "one", "new validation text", **BETTER)
    releases = release(released)
    assert outcomes(releases) == both("2", "promoted")
    assert aliases(released) == aliases(released, LIBRARY) == {CHAMPION: "2", PREVIOUS: "1"}
    signers = allow(released / "signers", ada=released / "ada/key")
    signature = registry(released).version(LIBRARY, "2").signature
    assert check_signature(released / "dist/library", signature, signers) == "ada"
    decided = decision(released, LIBRARY, "2")
    assert (decided["outcome"], decided["champion_before"]) == ("promoted", "1")
    gates = {gate["name"]: gate for gate in decided["gates"]}
    assert gates["accuracy_delta"]["given"] == pytest.approx(0.05)
    trial = decision(released, ENCODER, "2")["trial"]
    assert (trial["metric"], trial["candidate"], trial["champion"]) == (NATS_PER_BYTE, 1.2, 1.25)
    assert (trial["low"], trial["high"], trial["num_items"]) == (pytest.approx(-0.051), pytest.approx(-0.049), 500)
    assert trial["items_sha256"] == hashlib.sha256(b"new validation text").hexdigest()
    assert trial["items_sha256"][:12] in "\n".join(releases[0].log_lines)
    with get_client(sync_client=True) as client:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=[f"decision-{LIBRARY}"]))
        (shown,) = client.read_artifacts(artifact_filter=key, limit=1)
    assert "promoted" in str(shown.data)


def test_a_release_killed_before_an_alias_moves_is_recorded_and_finished_by_the_next(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrain(released, "one two three", **BETTER)
    with monkeypatch.context() as patched:
        patched.setattr(Registry, "promote", Mock(side_effect=RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            release(released)
    assert decision(released, ENCODER, "2")["outcome"] == "promoted"
    assert aliases(released) == {CHAMPION: "1", CANDIDATE: "2"}
    assert outcomes(release(released))["encoder"] == ("2", "promoted")
    assert aliases(released) == {CHAMPION: "2", PREVIOUS: "1"}


def test_a_worse_model_stays_a_candidate_even_if_new_text_is_accepted_and_the_error_shows_the_figures(
    released: Path,
) -> None:
    retrain(released, "one", "new validation text", nats_per_byte=1.3)
    with pytest.raises(GateError, match=ENCODER) as caught:
        release(released, accept_held=True)
    assert "perplexity_ratio is 1.2214, at most 1.02" in caught.value.cause
    assert aliases(released) == {CHAMPION: "1", CANDIDATE: "2"}
    assert aliases(released, LIBRARY) == {CHAMPION: "2", PREVIOUS: "1"}
    assert decision(released, ENCODER, "2")["outcome"] == "refused"


def test_a_nightly_run_with_a_version_that_the_champion_cannot_be_compared_with_ends_as_held_not_completed(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozeline.flows.nightly.pipeline", lambda project, refresh: None)  # all stages are up to date
    retrain(released, "one", "unreadable")
    state = nightly(released, return_state=True)
    assert (state.name, state.is_completed()) == ("Held", False)
    assert ENCODER in str(state.message)
    assert "now candidate" in (released / "reports/report.html").read_text()
    assert aliases(released) == aliases(released, LIBRARY) == {CHAMPION: "1", CANDIDATE: "2"}
    assert "no item in common: `clozeline release --accept`" in release(released)[0].reason
    assert outcomes(release(released, accept_held=True)) == both("2", "promoted")
    text = (released / "params.yaml").read_text()
    (released / "params.yaml").write_text(text.replace("promote: when_not_worse", "promote: when_better"))
    retrain(released, "one two three four", "new text")
    assert nightly(released, return_state=True).name == "Completed", "no action needed"
    assert decision(released, ENCODER, "3")["outcome"] == "kept"
    assert aliases(released)[CHAMPION] == "2"


def test_a_registry_that_stops_answering_is_tried_again_only_in_a_release_that_waits(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Mock(side_effect=TransientError("the registry does not answer", given="", expected="", do=""))
    monkeypatch.setattr("clozeline.orchestration.release.require_locked", away)
    monkeypatch.setitem(RETRIES, "retry_delay_seconds", [0.0] * 4)
    for waits, tries in ((False, 1), (True, 1 + 5)):
        with pytest.raises(TransientError):
            release(project, waits=waits)
        assert away.call_count == tries


def test_a_release_does_not_restore_a_version_that_was_rolled_back(released: Path) -> None:
    retrain(released, "one two three")
    release(released)
    registry(released).roll_back(ENCODER)
    (held, _) = release(released)
    assert (held.version, held.outcome) == ("2", "held")
    assert "--undo" in held.reason
    assert aliases(released) == {CHAMPION: "1", PREVIOUS: "2"}


def test_a_first_encoder_of_a_short_trial_is_refused_and_no_error_of_a_run_but_int8_that_disagrees_is(
    project: Path,
) -> None:
    write_metrics(project, int8_agreement=0.5)
    with pytest.raises(GateError, match=f"{ENCODER}, {LIBRARY}"):
        release(project, trial=True)
    write_metrics(project, unigram_perplexity=200.0)
    with pytest.raises(GateError, match=ENCODER):
        release(project)
    made = release(project, trial=True)
    assert outcomes(made)["encoder"] == ("1", "refused")
    assert "unigram_ratio is 1.3" in made[0].reason
    assert aliases(project) == {CANDIDATE: "1"}


def test_a_damaged_package_or_one_that_dvc_did_not_make_gets_no_version(project: Path) -> None:
    for name, told in (("manifest.json", r"differs from its hash in dvc\.lock"), ("model.int8.onnx", r"int8\.onnx")):
        file = project / "dist/encoder" / name
        file.chmod(0o644)
        file.write_bytes(file.read_bytes() + b"\n")
        with pytest.raises(ArtifactError, match=told):
            release(project)
    assert registry(project).names_with(CANDIDATE) == []


def test_a_nightly_flow_runs_the_stages_and_releases_their_packages_and_a_failed_one_leaves_a_report(
    project: Path,
) -> None:
    (project / "raw.txt").write_text("one two three")
    shutil.rmtree(project / "dist")
    nightly(project)
    assert aliases(project) == aliases(project, LIBRARY) == {CHAMPION: "1"}
    assert "cleaned" in (project / "data/clean/raw.txt").read_text()
    report = (project / "reports/report.html").read_text()
    assert all(told in report for told in ("clozeline-encoder version 1, now champion", "✓ passed", "time to answer"))
    client = MlflowClient(address(project))
    (flow_run,) = client.search_runs(["1"], "tags.`dvc.lock_md5` != ''")
    assert "report.html" in [file.path for file in client.list_artifacts(flow_run.info.run_id)]
    assert flow_run.info.run_id in report
    for file in (project / "raw.txt", project / "reports/report.html"):
        file.unlink()
    with pytest.raises(DataError, match=r"raw\.txt"):
        nightly(project)
    assert "<html" in (project / "reports/report.html").read_text()
