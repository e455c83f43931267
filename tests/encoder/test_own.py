"""An encoder of one's own, the documented one: from params to a saved folder, and what it lacks is said at once."""

import math
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from clozeline.encoder.architecture import longest_row_of
from clozeline.encoder.own import sources_of
from clozeline.lab.contest import open_published
from clozeline.language import models
from clozeline.pretraining.job import name_of_training
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks import adapters, heads
from clozeline.training.micro_batches import Precision
from tests.make.models import started

PROJECT = Path(__file__).parents[2]
OWN = "mine.encoder:Scaled"
ROW = [2, 10, 11, 12, 13, 14, 3]
(DOCUMENTED,) = re.findall(
    r"```python\n(from torch.*?)```", (PROJECT / "docs/pretraining.md").read_text(encoding="utf-8"), re.DOTALL
)
SOURCE = f"""
import torch
{DOCUMENTED}

class Scaled(Encoder):
    def __init__(self, params, ids):
        super().__init__(params, ids)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids, attention_mask) * self.scale

def unlisted(params, ids):
    encoder = Encoder(params, ids)
    encoder.layers.layers = nn.Sequential(*encoder.layers.layers)
    return encoder

def untied(params, ids):
    encoder = Encoder(params, ids)
    encoder.get_input_embeddings = lambda: None
    return encoder

def nothing(params, ids):
    return None

def broken(params, ids):
    return nn.Linear(params.no_such_knob, 1)

class Narrow(Encoder):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids, attention_mask)[..., :-1]

class Careless(Encoder):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids)

class Unnamed(Encoder):
    def forward(self, tokens, mask=None):
        return super().forward(tokens, mask)
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch) -> Path:
    """`mine.encoder`, as a package in the project's folder."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "encoder.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield package / "encoder.py"
    for name in ("mine", "mine.encoder"):
        sys.modules.pop(name, None)


@pytest.fixture
def model(params_of, ids):
    return models.build(params_of(OWN), "mlm", ids, seed=0)


@pytest.fixture
def saved(model, tiny_tokenizer: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    folder.mkdir()
    models.save(model, tiny_tokenizer, folder)
    return folder


def test_an_own_encoder_is_registered_by_one_line_of_params(model, own_module, params_of, ids, batch_of) -> None:
    assert type(model.base_model.own).__module__ == "mine.encoder"
    assert (len(model.layers), models.head_of(model), longest_row_of(model.config)) == (2, "mlm", 64)
    assert sources_of(model) == [own_module]
    batch = batch_of(ROW, [2, 33, 40, 3])
    functional.cross_entropy(models.target_logits(model, batch), batch.labels_T).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters()), "every weight is trained"
    assert sources_of(models.build(params_of("bert"), "mlm", ids, seed=0)) == []


def test_the_documented_encoder_meets_the_requirements_of_an_encoder(params_of, ids, batch_of) -> None:
    """P13, P14 and P23 hold for the documented encoder, in a named size too."""
    model = models.build(params_of("mine.encoder:build"), "mlm", ids, seed=0).eval()
    with torch.inference_mode():
        alone_TV, padded_TV = (models.target_logits(model, batch_of(ROW, pad_to=pad)) for pad in (0, 20))
        other_TV = models.target_logits(model, batch_of([*ROW[:5], 60, 3]))
        batch = batch_of(*[[2, *torch.randint(5, 64, (30,)).tolist(), 3] for _ in range(20)])
        loss = functional.cross_entropy(models.target_logits(model, batch), batch.labels_T)
    assert (alone_TV - padded_TV).abs().max() <= 1e-5
    assert (alone_TV[0] - other_TV[0]).abs().max() > 1e-6
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)
    numbers = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))
    large = params_of("mine.encoder:build", size="mini", **numbers)
    assert models.build(large, "mlm", ids, seed=0).config.hidden_size == 96


def test_editing_the_module_of_an_own_encoder_starts_another_training(
    model, own_module, tiny_pretraining, tiny_tokens: Path
) -> None:
    precision = Precision.of("fp32", torch.device("cpu"))
    before = name_of_training(tiny_pretraining, 1, tiny_tokens, 40, model, precision)
    assert name_of_training(tiny_pretraining, 1, tiny_tokens, 40, model, precision) == before
    own_module.write_text(SOURCE.replace("0.5", "0.7"))
    assert name_of_training(tiny_pretraining, 1, tiny_tokens, 40, model, precision) != before


@pytest.mark.parametrize("tied", [True, False])
def test_an_own_encoder_gives_the_same_bits_after_a_reload_and_at_the_start_of_another_training(
    tied, params_of, ids, batch_of, tiny_tokenizer, tmp_path: Path
) -> None:
    params, batch = params_of(OWN, tie_word_embeddings=tied), batch_of(ROW, [2, 33, 40, 3])
    model = models.build(params, "mlm", ids, seed=5).eval()
    with torch.no_grad():
        model.head.output.bias += torch.arange(64.0)
    models.save(model, tiny_tokenizer, tmp_path)
    again = models.load(tmp_path, OWN)
    assert not again.training
    assert (again.head.output.weight is again.encoder.own.tokens.weight) == tied
    started_again = started(str(tmp_path), params, "mlm", ids, seed=0, max_length=64, tokenizer=tiny_tokenizer).eval()
    with torch.inference_mode():
        expected_TV, *others = (models.target_logits(it, batch) for it in (model, again, started_again))
        whole_BLV = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).logits
    assert all(torch.equal(other_TV, expected_TV) for other_TV in others)
    assert (whole_BLV.reshape(-1, 64)[batch.slot_T] - expected_TV).abs().max() <= 1e-5
    assert b"head.output.weight" not in (tmp_path / "model.safetensors").read_bytes() or not tied


def test_weights_of_an_edited_module_are_refused(saved: Path, own_module) -> None:
    own_module.write_text(SOURCE.replace("shape.intermediate_size", "2 * shape.intermediate_size"))
    sys.modules.pop("mine.encoder")
    with pytest.raises(ArtifactError, match=r"(?s)mine\.encoder:Scaled.*size mismatch"):
        models.load(saved, OWN)


def test_an_own_encoder_is_opened_only_if_the_params_name_it(saved: Path, params_of, ids) -> None:
    """At the start of a training, beside others in a contest, and for a task."""
    doors = [partial(started, str(saved), params_of("bert"), "mlm", ids, seed=0, max_length=64)]
    for family in (None, "mine.other:build"):
        doors.append(partial(open_published, str(saved), family))
        doors.append(partial(heads.build, saved, "text-classification", 0, {}, family=family))
    for door in doors:
        with pytest.raises(ArtifactError, match=r"(?s)`mine\.encoder:Scaled`.*name it as `family`"):
            door()
    assert models.head_of(open_published(str(saved), OWN)) == "mlm"


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("mine.other:build", "No module named 'mine.other'"),
        ("mine.failing:build", "a_library_that_is_not_there"),
        ("mine.encoder:built", "no attribute 'built'"),
        ("mine.encoder:nothing", "gives NoneType"),
        ("mine.encoder:untied", "tie_word_embeddings: false"),
        ("mine.encoder:broken", "cannot be built: AttributeError.*no_such_knob"),
        ("mine.encoder:Narrow", r"\(2, 8, 31\).*\(2, 8, 32\)"),
        ("mine.encoder:Careless", "reads padding.*`attention_mask`"),
        ("mine.encoder:Unnamed", "fails on short rows: TypeError.*attention_mask"),
    ],
)
def test_an_unusable_own_encoder_is_refused_with_the_reason(family, told, own_module, params_of, ids) -> None:
    own_module.with_name("failing.py").write_text("import a_library_that_is_not_there")
    with pytest.raises(ParamsError, match=f"(?s){told}"):
        models.build(params_of(family), "mlm", ids, seed=0)


def test_what_an_own_encoder_cannot_support_is_refused(model, params_of, ids) -> None:
    for objective, knobs in (("clm", {}), ("mlm", {"stochastic_depth": 0.1})):
        with pytest.raises(ParamsError):
            models.build(params_of(OWN, **knobs), objective, ids, seed=0)
    with pytest.raises(ParamsError, match="gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()


@pytest.mark.parametrize(("kind", "shape"), [("text-classification", (1, 3)), ("feature-extraction", (1, 7, 32))])
@torch.inference_mode()
def test_an_own_encoder_has_a_fresh_head_for_each_kind_of_task(kind, shape, model, saved, batch_of, tmp_path) -> None:
    """A saved model of this kind opens again with its head."""
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    built = heads.build(saved, kind, 0, {"num_labels": 3}, family=OWN)
    assert torch.equal(built.encoder.own.tokens.weight, model.encoder.own.tokens.weight)
    heads.save(built, saved, 32, tuned)
    again = heads.build(tuned, kind, 1, {}, family=OWN)
    one, other = (it(batch_of(ROW).input_ids_BL).logits for it in (built, again))
    assert one.shape == shape
    assert torch.equal(one, other)


def test_layers_of_an_own_encoder_can_be_frozen_if_they_are_in_a_list(model, params_of, ids) -> None:
    adapters.freeze(model, 1)
    first, second = model.layers
    assert not any(weight.requires_grad for weight in first.parameters())
    assert all(weight.requires_grad for weight in second.parameters())
    with pytest.raises(ParamsError, match="ModuleList"):
        adapters.freeze(models.build(params_of("mine.encoder:unlisted"), "mlm", ids, seed=0), 1)


@pytest.mark.parametrize("name", ["mine", ":build", "mine.encoder:build()"])
def test_a_name_that_is_neither_a_family_nor_a_path_is_refused_by_params(name, params_of) -> None:
    with pytest.raises(ValueError, match=r"package\.module:build"):
        params_of(name)
