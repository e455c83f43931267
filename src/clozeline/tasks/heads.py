"""Models of the kinds of task: a pre-trained encoder with a fresh head, or a published model with the head that it has.

A fresh classifier on the first token may get a layer that lets it read the mean over all tokens, in a layout that stock
classes load. Stock classifiers of BERT and its relatives read the first token through a dense layer. Sentence encoders
and masked language models are trained at all tokens, so the mean says more: docs/tasks.md has the figures of both.

Shapes: B rows, L longest row, C classes or tags, H hidden, V vocabulary.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn

from clozeline.encoder import architecture, checkpoints, families, layers
from clozeline.encoder.families.layout import HeadKind
from clozeline.encoder.model import EncoderModel
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks.rows import EncodedBatch
from clozeline.tokenizing.tokenizer.folder import write
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published

# Weight of the mean beside the token itself, which the residual connection adds.
_MEAN_OVER_TOKEN = 10.0
_DENSE_SCALE = 0.1
# Activations of heads that are nearly linear for values of the order of `_DENSE_SCALE`.
_NEARLY_LINEAR = frozenset({"tanh", "gelu"})
_LOG = logging.getLogger(__name__)
# The model that a kind of task trains, for rooms that do not import transformers.
TaskModel: TypeAlias = checkpoints.AnyModel
# Smallest plausible ratio of tokens to rows of the embedding, which is rounded up.
_LEAST_OF_VOCABULARY = 0.95
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
_MASKED_LM = "ForMaskedLM"
_CLASSIFIER = "ForSequenceClassification"
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
# Prefix of the label of entailment, ignoring case: `entailment`, `ENTAILMENT`.
_FOLLOWS = "entail"


def _add_mean_layer(config: Any) -> bool:
    """Add a layer to the configuration if the classifier of its family would read the first token; return whether."""
    layout = families.LAYOUTS.get(config.model_type)
    if layout is None or "text-classification" not in layout.heads:
        return False
    head, encoder = layout.heads["text-classification"].shape(config), layout.architecture(config)
    shares_weights = encoder.weights_of_layer is not None
    if head.pooling != "first" or encoder.is_pre_norm or encoder.is_causal or encoder.is_fused or shares_weights:
        return False
    config.num_hidden_layers += 1
    return True


def _mean_layer_names(model: EncoderModel) -> frozenset[str]:
    """Return the published names of the layer's weights."""
    number = len(model.encoder.layers) - 1
    own = [name for name, _ in model.named_parameters() if name.startswith(f"encoder.layers.{number}.")]
    return frozenset(model.layout.published(own, model.config, model.kind).values())


@torch.no_grad()
def _set_mean_layer(model: EncoderModel) -> None:
    """Set the fresh last layer to the mean over tokens, and the dense layer of the head to the identity.

    Keys of 0 make every token attend to all tokens alike. Queries and the input of the MLP stay random, so that the
    layer can be trained like any other.
    """
    layer = model.encoder.layers[-1]
    assert isinstance(layer, layers.Layer)
    layer.attention.key.weight.zero_()
    nn.init.eye_(layer.attention.value.weight)
    nn.init.eye_(layer.attention.output.weight).mul_(_MEAN_OVER_TOKEN)
    layer.mlp.output.weight.zero_()
    if model.head.dense is not None and model.head.shape.activation in _NEARLY_LINEAR:
        nn.init.eye_(model.head.dense.weight).mul_(_DENSE_SCALE)


def build(
    encoder: Path,
    kind: HeadKind,
    seed: int,
    changes: Mapping[str, object],
    *,
    family: str | None = None,
    reads_mean: bool = False,
) -> TaskModel:
    """Return the encoder with a fresh head drawn from `seed`, without touching the global random state.

    Args:
        encoder: folder of a trained encoder.
        changes: configuration of the head (`id2label`, …); names that the family's configuration lacks are ignored.
        family: `pretrain.model.family` of the params, which opens your own encoder.
        reads_mean: whether a fresh classifier on the first token gets the layer that reads the mean over all tokens.

    Raises:
        ArtifactError: the folder holds no model, its family has no such head, it requires custom code, or it is causal
            and would classify at a token that sees no other.
    """
    if not (encoder / "config.json").is_file():
        raise ArtifactError(f"{encoder} holds no model: no {encoder / 'config.json'}", do="run `dvc repro pretrain`")
    checkpoint = checkpoints.Checkpoint(str(encoder), family=family)
    config = checkpoint.config()
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    has_mean_layer = reads_mean and _add_mean_layer(config)
    model, missing = checkpoints.opened(checkpoint, config, kind, seed)
    added = _mean_layer_names(model) if has_mean_layer and isinstance(model, EncoderModel) else frozenset()
    lost = [name for name in model.of_encoder(missing) if name not in added]
    checkpoints.check_whole(encoder, lost, do="train or save it again")
    if has_mean_layer and isinstance(model, EncoderModel):
        _set_mean_layer(model)
    if kind == "text-classification" and _classifies_at_a_blind_token(model):
        raise ArtifactError(
            f"{encoder} is a causal {model.config.model_type}: its head reads the first token, which sees no other",
            do="pre-train with `objective: mlm` or the family modernbert, or choose another kind of task",
        )
    return model.eval()


def _classifies_at_a_blind_token(model: TaskModel) -> bool:
    if isinstance(model, EncoderModel):
        return model.encoder.architecture.is_causal and model.head.shape.pooling == "first"
    return bool(getattr(model.config, "is_decoder", False))


def output_layer(model: TaskModel) -> nn.Linear:
    """Return the last layer of the head, which computes the logits."""
    in_encoder = {id(inner) for inner in model.base_model.modules()}
    linear = [inner for inner in model.modules() if isinstance(inner, nn.Linear) and id(inner) not in in_encoder]
    return linear[-1]


def features(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return what the output layer of the head reads: `feature_BF`, or for each token `feature_BLF`."""
    read: list[Tensor] = []
    with output_layer(model).register_forward_pre_hook(lambda _, given: read.append(given[0])):
        model(**batch.inputs)
    (feature,) = read
    return feature


def tells_pairs_apart(model: TaskModel) -> bool:
    """Return whether the model has token types for the two texts of a pair, in addition to the separator."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def check_fit(model: TaskModel, encoder: Path, *, vocab_size: int, max_length: int, pad_id: int) -> None:
    """Check that tokenizer, model and `max_length` fit together.

    Raises:
        ArtifactError: the folder's tokenizer was made for another model.
        ParamsError: rows of `max_length` tokens are longer than the model can read.
    """
    if vocab_size > model.config.vocab_size:
        raise ArtifactError(
            f"{encoder}: the tokenizer has {vocab_size:,} tokens, the embedding only {model.config.vocab_size:,} rows",
            do="save the tokenizer that the model was trained with, or run `dvc repro pretrain`",
        )
    if model.config.pad_token_id not in (None, pad_id):
        raise ArtifactError(
            f"{encoder}: the tokenizer pads with token {pad_id}, the model with {model.config.pad_token_id}",
            do="save the tokenizer that the model was trained with, or run `dvc repro pretrain`",
        )
    if vocab_size < _LEAST_OF_VOCABULARY * model.config.vocab_size:
        _LOG.warning(
            "%s: the tokenizer has %d tokens, the model's embedding %d rows; check that they belong together",
            *(encoder, vocab_size, model.config.vocab_size),
        )
    longest = architecture.longest_row_of(model.config)
    if max_length > longest:
        raise ParamsError(
            f"`max_length: {max_length}` is longer than the {longest} tokens that the encoder can read",
            do="lower `max_length`, or pre-train with larger `max_position_embeddings`",
        )


def save(model: TaskModel, encoder: Path, max_length: int, out: Path, *, with_types: bool = False) -> None:
    """Write the model and the encoder's tokenizer into `out`, as stock Auto classes load them.

    The tokenizer keeps `max_length`, so that texts are cut in use as in training and test. `with_types` makes it return
    token types, for a model that was trained with them.
    """
    model.save(out)
    tokenizer = open_published(str(encoder))
    tokenizer.model_max_length = max_length
    if with_types:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    write(tokenizer, out)


def folder_of(name: str, revision: str | None, what: str) -> Path:
    """Return the folder `name`, or that of the hub model `name` at the commit `revision`.

    Args:
        what: how messages call the model.

    Raises:
        ArtifactError: the model is missing, or the hub did not answer.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{what}, {name}, is not a folder and cannot be downloaded from the hub: {checkpoints.first_line(error)}",
            do=f"with a network, run `hf download {name} --local-dir FOLDER`, and name that folder",
        ) from error


def named(labels: Sequence[str]) -> dict[str, object]:
    """Return the configuration of a head that chooses among `labels`."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}


def build_classifier(
    encoder: Path,
    labels: Sequence[str],
    seed: int,
    problem: Problem = "single_label_classification",
    family: str | None = None,
) -> TaskModel:
    """Return the encoder with a fresh head for `labels`; raises as `build`."""
    changes = {
        **named(labels),
        # Masked language modelling never trains [CLS], so the mean over tokens summarizes a text better.
        "classifier_pooling": "mean",
    }
    if problem != "single_label_classification":  # which is the default of transformers
        changes["problem_type"] = problem
    return build(encoder, "text-classification", seed, changes, family=family, reads_mean=True)


def logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `logits_BC`, or for each token `logits_BLC`."""
    logits: Tensor = model(**batch.inputs).logits
    return logits


def end_logits(model: TaskModel, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
    """Return the logits `start_BL` and `end_BL`."""
    start_BL, end_BL = model(**batch.inputs).logits.unbind(dim=-1)
    return start_BL, end_BL


def embeddings(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `embedding_BH`, vectors of length 1 in fp32, whatever the precision of the model."""
    mask_BL = batch.attention_mask_BL
    hidden_BLH = model.base_model(**batch.inputs).last_hidden_state
    return layers.mean_of_tokens(
        hidden_BLH.float(), torch.ones_like(batch.input_ids_BL) if mask_BL is None else mask_BL
    )


def build_cloze(encoder: Path, family: str | None = None) -> TaskModel:
    """Return the masked language model in the folder. Raises what `build` raises, and:

    Raises:
        ArtifactError: the model is not a masked language model, so it has no vocabulary head.
    """
    config = encoder / "config.json"
    names = json.loads(config.read_bytes()).get("architectures") or [] if config.is_file() else [_MASKED_LM]
    if not any(name.endswith(_MASKED_LM) for name in names):
        raise ArtifactError(
            f"{encoder} is not a masked language model (…{_MASKED_LM}), but {', '.join(names) or 'nothing'}",
            do="pre-train with `objective: mlm`, or choose another kind of task",
        )
    return build(encoder, "mlm", 0, {}, family=family)


def log_probabilities(model: TaskModel, batch: EncodedBatch, mask_id: int) -> Tensor:
    """Return `log_probability_BV` of each token at the last mask of each row."""
    is_mask_BL = batch.input_ids_BL == mask_id
    last_B = is_mask_BL.shape[1] - 1 - is_mask_BL.flip(1).int().argmax(dim=1)
    at_masks = architecture.ChosenPositions(last_B[:, None], is_mask_BL.shape[1])
    log_probability_BV: Tensor = model(**batch.inputs, positions=at_masks).logits[:, 0].float().log_softmax(dim=1)
    return log_probability_BV


def build_entailer(folder: Path) -> TaskModel:
    """Return the classifier in the folder. Raises what `build` raises, and:

    Raises:
        ArtifactError: the model is not a classifier with a label of entailment.
    """
    config = folder / "config.json"
    facts = json.loads(config.read_bytes()) if config.is_file() else {}
    labels, names = list(facts.get("id2label", {}).values()), facts.get("architectures") or []
    is_classifier = any(name.endswith(_CLASSIFIER) for name in names)
    if not (is_classifier and sum(map(_is_entailment, labels)) == 1):
        raise ArtifactError(
            f"`entailment.model` is no classifier with one label `entailment`: labels {', '.join(labels) or 'none'},"
            f" class {', '.join(names) or 'none'}",
            do="name another model, or fine-tune one (`kind: classification` with `second_field`, as in preset mnli)",
        )
    return build(folder, "text-classification", 0, {})


def entailment_logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `logit_B` of entailment: that the second text follows from the first."""
    (place,) = (place for place, label in model.config.id2label.items() if _is_entailment(label))
    logit_B: Tensor = model(**batch.inputs).logits[:, place].float()
    return logit_B


def _is_entailment(label: str) -> bool:
    return label.casefold().startswith(_FOLLOWS)
