import pytest

from clozeline.exporting.proof import MIN_AGREEMENT_TEXTS, MIN_METRIC_ITEMS
from clozeline.orchestration.import_items import are_built_in, built_in_items
from clozeline.records.finetune.scored_items import HeldOut

KINDS = [
    ("fill-mask", False),
    ("text-classification", True),
    ("question-answering", False),
    ("feature-extraction", False),
]


@pytest.mark.parametrize(("task", "reads_pairs"), KINDS)
def test_built_in_items_are_always_the_same_and_enough_for_the_gates(task: str, reads_pairs: bool) -> None:
    items = built_in_items(task, reads_pairs=reads_pairs)
    assert items == built_in_items(task, reads_pairs=reads_pairs)
    deciding = len({item.model_dump_json() for item in items}) * 7 // 8
    assert deciding >= max(MIN_METRIC_ITEMS, MIN_AGREEMENT_TEXTS)


def test_built_in_items_are_known_in_part_and_beside_others() -> None:
    items = built_in_items("question-answering", reads_pairs=False)
    assert are_built_in(items[5:], "question-answering", reads_pairs=False)
    assert not are_built_in([*items, HeldOut(text="q", right=("a",))], "question-answering", reads_pairs=False)


def test_the_answer_to_a_built_in_question_is_in_its_context() -> None:
    items = built_in_items("question-answering", reads_pairs=False)
    assert all(item.second and item.right[0] in item.second for item in items)


def test_the_score_of_a_pair_is_the_share_of_parts_that_are_equal() -> None:
    items = built_in_items("feature-extraction", reads_pairs=False)
    assert {item.score for item in items} == {place / 6 for place in range(7)}
    same = next(item for item in items if item.score == 1)
    one, other = ({word.strip(".,;:").lower() for word in text.split()} for text in (same.text, str(same.second)))
    assert one ^ other <= {"and"}
