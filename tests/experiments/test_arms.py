"""Claim: an arm is params.yaml with changes, and two arms that an ablation cannot compare are refused at once."""

from pathlib import Path

import pytest

from clozeline.lab.experiment import arms_of
from clozeline.system.errors import ParamsError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("pretrain: {num_threads: 1}  # as `clozeline init` writes it: differences\n")
    return tmp_path


def test_an_arm_is_the_project_with_the_changes_of_files_and_settings_in_their_order(root: Path) -> None:
    (root / "small.yaml").write_text("pretrain: {steps: 7}\ntokenize: {vocab_size: 500}\n", encoding="utf-8")
    before = (root / "params.yaml").read_bytes()
    base, changed = arms_of("params.yaml", "small.yaml 'pretrain.masking={mask_rate: 0.4}' pretrain.steps=9", root)
    pretrain = changed.params.pretrain
    assert (pretrain.steps, pretrain.masking.mask_rate, changed.params.tokenize.vocab_size) == (9, 0.4, 500)
    assert base.params.pretrain.masking.unit == pretrain.masking.unit
    assert base.name == "params.yaml"
    assert (root / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("nonsense", "nonsense"),
        ("", "nothing"),
        ("'pretrain.steps=5", "quotation"),
        ("pretrain.stepz=5", "stepz"),
        ("pretrain.masking.mask_rate=2", "mask_rate: 2"),
        ("pretrain.recipe=measured", "same training"),
        ("pretrain.checkpoint_every_steps=7", "same training"),
        ("seed=5", "`seed`"),
        ("preprocess.min_characters=5 evaluate.num_pseudo_documents=3", "`preprocess` and `evaluate`"),
        ("pretrain.start=champion", "champion"),
        ("pretrain.objective=clm finetune={} export.models={}", "mlm and clm"),
    ],
)
def test_arms_that_do_not_compare_are_refused(root: Path, second: str, told: str) -> None:
    with pytest.raises(ParamsError) as error:
        arms_of("params.yaml", second, root)
    assert told in str(error.value)
