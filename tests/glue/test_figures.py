"""Claim: scores, intervals and averages are those that GLUE's leaderboard and Student's t give."""

import numpy as np
import pytest

from clozeline.lab.glue import TaskFigures, Trained, average_of, figures_of, summary
from clozeline.lab.glue_data import chosen, glue_tasks
from clozeline.records.finetune.statistics import Interval
from clozeline.system.errors import ParamsError

BERT_LARGE = {
    "cola": (60.5,),
    "sst2": (94.9,),
    "mrpc": (89.3, 85.4),
    "stsb": (87.6, 86.5),
    "qqp": (72.1, 89.3),
    "mnli": (86.7, 85.9),
    "qnli": (92.7,),
    "rte": (70.1,),
    "wnli": (65.1,),
}
"""Row of BERT-large on the leaderboard (gluebenchmark.com), whose score is 80.5."""


def measured(name: str, *scores: float) -> TaskFigures:
    score = sum(scores) / len(scores)
    return TaskFigures(
        task=name,
        title=glue_tasks()[name].title,
        metrics={str(place): value for place, value in enumerate(scores)},
        score=score,
        score_of_seeds=(score - 1, score + 1),
        over_seeds=None,
        over_rows=Interval(low=score - 3, high=score + 3),
        num_train=100,
        num_dev=100,
    )


def trained(parts: list[str], right: list[float], answers: list[float]) -> Trained:
    return Trained(parts=parts, right=right, answers=answers, num_train=50, num_validation=5, seconds=1.0)


ROW = [measured(name, *scores) for name, scores in BERT_LARGE.items()]


def test_the_average_with_wnli_is_that_of_the_leaderboard() -> None:
    found = summary("bert", [1, 2], None, ROW)
    assert found.average is not None
    assert found.average_with_wnli is not None
    assert found.average_with_wnli.score == pytest.approx(80.5, abs=0.05)
    assert "wnli" not in found.average.tasks
    assert found.average.score == pytest.approx(sum(it.score for it in ROW[:-1]) / 8)
    assert found.average.over_rows.high - found.average.score == pytest.approx(3 / np.sqrt(8))
    assert found.average.over_seeds is not None
    assert found.average.over_seeds.high - found.average.score == pytest.approx(12.706, abs=0.001), "t of 1, s = √2"


@pytest.mark.parametrize(("tasks", "limit", "missing"), [(ROW[1:], None, ("cola",)), (ROW, 100, ())])
def test_a_part_of_the_tasks_or_rows_has_no_average(
    tasks: list[TaskFigures], limit: int | None, missing: tuple[str, ...]
) -> None:
    found = summary("bert", [1, 2], limit, tasks)
    assert found.average is None is found.average_with_wnli
    assert found.missing == missing
    assert found.mean_of_measured is not None
    assert found.mean_of_measured.score == pytest.approx(average_of([it for it in tasks if it.task != "wnli"]).score)


def test_wnli_alone_is_in_no_mean() -> None:
    assert summary("bert", [1, 2], None, ROW[-1:]).mean_of_measured is None


def test_two_metrics_and_two_parts_count_with_their_mean() -> None:
    answers = [[0, 1, 0, 0, 1, 1.0], [1, 1, 1, 0, 1, 1.0]]

    def answered(parts: list[str]) -> list[Trained]:
        return [trained(parts, [0, 1, 1, 0, 1, 1.0], of_seed) for of_seed in answers]

    mrpc = figures_of(glue_tasks()["mrpc"], answered(["dev"] * 6))
    assert (mrpc.num_train, mrpc.num_dev) == (50, 6)
    assert mrpc.metrics == pytest.approx({"f1": (6 / 7 + 8 / 9) / 2, "accuracy": 5 / 6})
    assert mrpc.score == pytest.approx(sum(mrpc.metrics.values()) / 2)
    assert mrpc.over_rows.low < mrpc.score <= mrpc.over_rows.high
    mnli = figures_of(glue_tasks()["mnli"], answered(["dev_matched"] * 2 + ["dev_mismatched"] * 4))
    assert mnli.metrics == pytest.approx({"dev_matched accuracy": 3 / 4, "dev_mismatched accuracy": 7 / 8})
    assert mnli.score_of_seeds == pytest.approx(((1 + 3 / 4) / 2, (1 / 2 + 1) / 2))


def test_a_correlation_of_constant_answers_counts_as_0() -> None:
    constant = trained(["dev"] * 4, [0, 1, 2, 3.0], [1.0] * 4)
    assert figures_of(glue_tasks()["stsb"], [constant]).score == 0


def test_tasks_are_chosen_by_either_name() -> None:
    assert [task.name for task in chosen("RTE,SST-2,stsb")] == ["sst2", "stsb", "rte"]
    with pytest.raises(ParamsError, match="no such task"):
        chosen("rte,axb")
