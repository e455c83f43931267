"""Claim: labels are read from one value, a list, or a separated string; "not labelled" differs from "no label"."""

from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams
from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord
from clozeline.tasks.formats import Labelled, fields_of

PARAMS = read_params(Path(__file__).parents[3] / "params.yaml").finetune["library"]


def params(**changes: object) -> ClassificationParams:
    return PARAMS.model_copy(update={"text_field": "text", "label_field": "label", **changes})


def read(label: object, **changes: object) -> Labelled:
    return Labelled.of(LabelledRecord({"text": "x", "other": "y", "label": label}, "here"), "test", params(**changes))


@pytest.mark.parametrize(
    ("label", "labels"), [("a|b", ("a|b",)), (3, ("3",)), (" a ", ("a",)), ("", None), (None, None)]
)
def test_a_single_label_is_not_split_at_the_separator(label: object, labels: object) -> None:
    assert read(label) == Labelled(("x",), labels, "test")


@pytest.mark.parametrize(
    ("label", "labels"), [(["a", "b"], ("a", "b")), ("a| b|", ("a", "b")), ([], ()), ("", ()), (None, None)]
)
def test_several_labels_are_a_list_or_a_string_with_separators(label: object, labels: object) -> None:
    assert read(label, multi_label=True).labels == labels


def test_a_label_list_with_other_values_is_refused() -> None:
    with pytest.raises(DataError, match="here: field `label`"):
        read([1, 2], multi_label=True)


def test_a_pair_is_read_from_two_fields() -> None:
    assert read("a", second_field="other").texts == ("x", "y")
    assert dict(fields_of(params(second_field="other"))) == {
        "text_field": "text",
        "label_field": "label",
        "second_field": "other",
    }
