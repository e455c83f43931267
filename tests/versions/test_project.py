"""A model to start from that DVC would delete first is refused."""

from pathlib import Path

import pytest

from clozeline.system.errors import ParamsError
from clozeline.versions.project import refuse_own_outputs

OUTS = ("models/encoder", "models/tokenizer", "metrics/pretrain.json")


@pytest.mark.parametrize("name", ["models/encoder", "models/encoder/generator", "./models/../models/encoder"])
def test_an_output_is_refused_with_a_folder_that_works(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParamsError) as caught:
        refuse_own_outputs({"pretrain.start": name}, OUTS, tmp_path)
    assert f"`pretrain.start: {name}`" in caught.value.problem
    assert f"cp -r {name} my-start" in caught.value.do
    assert "`start: champion`" in caught.value.do


def test_an_absolute_path_or_a_link_to_an_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models/encoder").mkdir(parents=True)
    (tmp_path / "mine").symlink_to("models/encoder")
    for name in ("mine", str(tmp_path / "models/encoder")):
        with pytest.raises(ParamsError, match=r"tokenize\.existing"):
            refuse_own_outputs({"pretrain.start": None, "tokenize.existing": name}, OUTS, tmp_path)


@pytest.mark.parametrize("name", ["my-start", "models", "models/encoder-2", "answerdotai/ModernBERT-base", None])
def test_other_folders_and_hub_names_pass(name: str | None, tmp_path: Path) -> None:
    refuse_own_outputs({"pretrain.start": name}, OUTS, tmp_path)
