"""A model to start from that DVC would delete first is refused."""

from pathlib import Path

import pytest

from clozeline.system.errors import ParamsError
from clozeline.versions.project import refuse_own_outputs

OUTS = ("models/encoder", "models/tokenizer", "metrics/pretrain.json")


def test_an_output_is_refused_with_a_folder_that_works(tmp_path: Path) -> None:
    """By its path, an absolute one, or a link; other folders and hub names pass."""
    (tmp_path / "models/encoder").mkdir(parents=True)
    (tmp_path / "mine").symlink_to("models/encoder")
    inner, around = "models/encoder/generator", "./models/../models/encoder"
    for name in ("models/encoder", inner, around, "mine", str(tmp_path / "models/encoder")):
        with pytest.raises(ParamsError) as caught:
            refuse_own_outputs({"tokenize.existing": None, "pretrain.start": name}, OUTS, tmp_path)
        assert f"`pretrain.start: {name}`" in caught.value.problem
        assert f"cp -r {name} my-start" in caught.value.do
        assert "`start: champion`" in caught.value.do
    for passing in ("my-start", "models", "models/encoder-2", "answerdotai/ModernBERT-base", None):
        refuse_own_outputs({"pretrain.start": passing}, OUTS, tmp_path)
