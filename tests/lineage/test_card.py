from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.record import Lock, LockedPath, LockedStage
from clozeline.registry.lineage import release_section
from tests.make.texts import encoder_metrics

LOCK = Lock(
    stages={
        "clean": LockedStage(
            cmd="clean",
            deps=(LockedPath(path="raw.txt", md5="11"), LockedPath(path="src/clozeline/text", md5="22.dir")),
            outs=(LockedPath(path="models/encoder", md5="33.dir"),),
        ),
        "export@encoder": LockedStage(
            cmd="export",
            deps=(LockedPath(path="models/encoder", md5="33.dir"),),
            outs=(LockedPath(path="dist/encoder", md5="44.dir"),),
        ),
        "elsewhere": LockedStage(cmd="x", deps=(LockedPath(path="other.txt", md5="55"),)),
    }
)
ENCODER = encoder_metrics(
    perplexity=7.389, perplexity_low=7.1, perplexity_high=7.7, target_tokens=1234, contaminated_fraction=0.017
)
TASK = TaskMetrics(
    headline=Headline(
        metric="accuracy",
        value=0.8,
        low=0.78,
        high=0.82,
        baseline="TF-IDF",
        baseline_value=0.7,
        trivial="x",
        trivial_value=0.1,
    )
)


def test_the_section_names_the_sources_of_the_package_by_their_hashes() -> None:
    told = release_section("encoder", ENCODER, LOCK)
    assert "`raw.txt`: md5 `11`" in told
    assert not any(other in told for other in ("src/", "other.txt", "models/encoder"))


def test_figures_of_an_encoder_have_their_intervals() -> None:
    told = release_section("encoder", ENCODER, LOCK)
    assert "- perplexity: 7.3890 (7.1000 to 7.7000)\n" in told
    assert "1,234 tokens" in told
    assert "1.7%" in told


def test_the_figure_of_a_task_has_its_interval_and_its_baselines() -> None:
    told = release_section("encoder", TASK, LOCK)
    assert "accuracy on the test split: 0.8000 (95 %: 0.7800 to 0.8200)" in told
    assert "TF-IDF 0.7000" in told
