"""The Python API: the names that `from clozeline import …` provides."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

import clozeline
from clozeline.params import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.training.curves import CurvePoint

PROJECT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", clozeline.__all__)
def test_each_name_of_the_api_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(clozeline, name).__name__ == name
    assert name in dir(clozeline)


def test_an_unknown_name_of_the_api_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'pretrian'"):
        clozeline.__getattr__("pretrian")


def five_lines() -> str:
    """As the docstring has them."""
    told = re.search(r"In five lines.*?\n\n(.*?)\n\n?\Z", pretraining.__doc__ or "", re.DOTALL)
    assert told
    return re.sub(r"^    ", "", told[1], flags=re.MULTILINE)


def test_the_five_lines_train_an_encoder_that_stock_transformers_loads(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = clozeline.read_params(PROJECT / "params.yaml").model_copy(update={"pretrain": tiny_pretraining})
    for path, place in (("data/tokens", tiny_tokens), ("models/tokenizer", tiny_tokenizer)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).symlink_to(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clozeline.params.read_params", lambda path: params)
    lines = five_lines()
    assert len([line for line in lines.splitlines() if not line.startswith(("import", "from"))]) <= 5
    names: dict[str, Any] = {}
    exec(lines, names)
    model = AutoModelForMaskedLM.from_pretrained("my-encoder", local_files_only=True)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained("my-encoder", local_files_only=True))
    assert names["trained"].state.step == tiny_pretraining.steps


def test_a_custom_callback_receives_the_curve(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path
) -> None:
    class Listening(clozeline.Callback):
        heard: list[CurvePoint]

        def __init__(self) -> None:
            self.heard = []

        def on_point(self, point: CurvePoint) -> None:
            self.heard.append(point)

    listening = Listening()
    trained = clozeline.pretrain(
        tiny_pretraining, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, callbacks=[listening]
    )
    assert listening.heard == trained.state.curve
    assert [point.step for point in listening.heard] == [5, 10, 15, 20, 25, 30, 35, 40]
