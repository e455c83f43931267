"""Parity: whether an exported graph computes the same as the trained model.

Shapes: B texts, L tokens, M masks in all texts together, V vocabulary, K likeliest tokens, C classes, H hidden.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from clozeline.encoder import checkpoints, layers, own
from clozeline.exporting.forms import GraphTexts, form_of
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.language import HIDDEN, TOP_IDS, TOP_SCORES
from clozeline.inference.open_model import GraphSession, TextBatch, softmax
from clozeline.system.errors import ArtifactError

BATCH_SIZES = (1, 3, 17)
# Number of texts that a batch may have whatever their length.
_ALWAYS = 3
# Largest number of scores in a layer of attention for larger batches: 1 GiB in ONNX Runtime, which keeps them all. With
# 12 heads, a batch of 17 texts fits up to 1,147 tokens.
_MAX_SCORES = 2**28
# Largest number of logits that the trained model, which gives them for every token, computes at a time.
_MAX_LOGITS = 2**27
# Lengths in tokens beside the model's longest: a graph may have kept a size of its traced example.
_LENGTHS = (2, 7, 128)


def largest_difference(
    trained: TrainedModel, graph: Path, input_names: tuple[str, ...], batch_sizes: Sequence[int] = BATCH_SIZES
) -> float:
    """Return the largest absolute difference of any output, as `differences_by_output`; NaN if any is NaN."""
    # Python's own `max` drops a NaN that is not the first.
    return float(np.max([*differences_by_output(trained, graph, input_names, batch_sizes).values()]))


def differences_by_output(
    trained: TrainedModel, graph: Path, input_names: tuple[str, ...], batch_sizes: Sequence[int] = BATCH_SIZES
) -> dict[str, float]:
    """Return the largest absolute difference of each output from the stock transformers model; NaN if any is NaN.

    Your own encoder has no stock class: its outputs are those of your code.

    Batches have 1, 3 and 17 texts of up to 2, 7, 128 and `max_length` tokens. The texts of a batch differ in length,
    so that all but the longest are padded. The stock model knows neither selected positions nor pooling.

    Raises:
        ArtifactError: the trained model itself gives NaN or infinity.
    """
    session = GraphSession(graph, input_names=input_names, num_threads=torch.get_num_threads())
    stock = _in_stock_class(trained)
    with_types = "token_type_ids" in input_names and trained.model.config.type_vocab_size > 1
    found: dict[str, list[float]] = {}
    for batch in _batches(trained, batch_sizes, with_types):
        for output, difference in _differences(trained, stock, session, batch):
            found.setdefault(output, []).append(difference)
    return {output: float(np.max(differences)) for output, differences in found.items()}


def _in_stock_class(trained: TrainedModel) -> PreTrainedModel | None:
    """Return the same weights in transformers' own class; None for your own encoder."""
    if isinstance(trained.model, own.OwnModel):
        return None
    where = checkpoints.Checkpoint(str(trained.folder)).where
    stock: PreTrainedModel = checkpoints.loaded_stock(trained.model.config, trained.model.kind, where)[0].stock.eval()
    return stock


def _differences(
    trained: TrainedModel, stock: PreTrainedModel | None, session: GraphSession, batch: TextBatch
) -> Iterator[tuple[str, float]]:
    """Yield outputs with their largest differences in one batch."""
    expected = _stock_outputs(trained, stock, batch)
    _check_finite(trained, batch, expected)
    # Each output alone, which may compute less, and for masks all together.
    for outputs in (*((output,) for output in expected), *([tuple(expected)] if trained.kind.fills_masks else ())):
        for output, given in zip(outputs, session.run(batch, *outputs), strict=True):
            yield output, float(np.abs(_compared(trained, batch, output, expected[output] - given)).max())
    if trained.kind.is_language_model:
        ids_MK, scores_MK = session.run(batch, TOP_IDS, TOP_SCORES)
        yield TOP_SCORES, _of_likeliest(expected["logits"], ids_MK.astype(np.int64), scores_MK)


def _check_finite(trained: TrainedModel, batch: TextBatch, expected: Mapping[str, npt.NDArray[np.float32]]) -> None:
    for output, values in expected.items():
        if not np.isfinite(_compared(trained, batch, output, values)).all():
            batch_size, length = batch.input_ids_BL.shape
            raise ArtifactError(
                f"{trained.folder}: {output} is not finite for {batch_size} texts of up to {length} tokens",
                do="train again, with a lower learning rate if the loss was not finite; an export cannot correct this",
            )


def _of_likeliest(
    logits_MV: npt.NDArray[np.float32], ids_MK: npt.NDArray[np.int64], scores_MK: npt.NDArray[np.float32]
) -> float:
    """Return the largest difference from the model's K largest probabilities, of `scores_MK` and of the tokens' own.

    Tokens of nearly equal probability may swap; a wrong token shows as a difference.
    """
    probability_MV = softmax(logits_MV)
    largest_MK = -np.sort(-probability_MV, axis=1)[:, : ids_MK.shape[1]]
    named_MK = np.take_along_axis(probability_MV, ids_MK, axis=1)
    return float(np.abs(np.stack([scores_MK, named_MK]) - largest_MK).max())


def _compared(
    trained: TrainedModel, batch: TextBatch, output: str, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return `values` without the outputs at padding, which are not read."""
    is_per_token = trained.kind.is_per_token or output == HIDDEN
    return values[batch.attention_mask_BL == 1] if is_per_token else values


def _batches(trained: TrainedModel, batch_sizes: Sequence[int], with_types: bool) -> Iterator[TextBatch]:
    tokenizer = trained.tokenizer
    generator = np.random.default_rng(0)
    num_heads = trained.model.config.num_attention_heads
    for length in (*(short for short in _LENGTHS if short < trained.max_length), trained.max_length):
        most = max(_MAX_SCORES // (num_heads * length**2), _ALWAYS)
        for batch_size in sorted({min(batch_size, most) for batch_size in batch_sizes}):
            lengths_B = np.linspace(length, length / 2, batch_size).round().astype(int)
            attention_mask_BL = (np.arange(length) < lengths_B[:, None]).astype(np.int64)
            input_ids_BL = generator.integers(trained.model.config.vocab_size, size=(batch_size, length))
            if tokenizer.mask_token_id is not None:
                input_ids_BL[:, length // 3] = tokenizer.mask_token_id
                input_ids_BL[1::2, length // 4] = tokenizer.mask_token_id  # every second text has two
            input_ids_BL[attention_mask_BL == 0] = tokenizer.pad_token_id
            types_BL = attention_mask_BL * (np.arange(length) > length // 2) if with_types else None
            yield TextBatch(tuple(range(batch_size)), input_ids_BL, attention_mask_BL, types_BL)


def _stock_outputs(
    trained: TrainedModel, stock: PreTrainedModel | None, batch: TextBatch
) -> dict[str, npt.NDArray[np.float32]]:
    batch_size, length = batch.input_ids_BL.shape
    num_rows = max(_MAX_LOGITS // (length * trained.model.config.vocab_size), 1)
    parts = [_of_rows(trained, stock, batch, slice(at, at + num_rows)) for at in range(0, batch_size, num_rows)]
    return {output: np.concatenate([part[output] for part in parts]) for output in parts[0]}


@torch.inference_mode()
def _of_rows(
    trained: TrainedModel, stock: PreTrainedModel | None, batch: TextBatch, rows: slice
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the outputs of the stock model for some texts of the batch, with the padding of the batch."""
    input_ids_BL = torch.from_numpy(batch.input_ids_BL[rows])
    attention_mask_BL = torch.from_numpy(batch.attention_mask_BL[rows])
    if stock is None:
        texts = GraphTexts(input_ids_BL, attention_mask_BL, token_type_ids=None, masks_only=None)
        return {name: values.numpy() for name, values in form_of(trained).compute(trained, texts).items()}
    inputs = {"input_ids": input_ids_BL, "attention_mask": attention_mask_BL}
    if batch.token_type_ids_BL is not None:
        inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids_BL[rows])
    output = stock(**inputs)
    outputs = {name: output[name] for name in ("logits", "start_logits", "end_logits") if name in output}
    if trained.kind.is_language_model:
        outputs["logits"] = outputs["logits"][_predicted(trained, input_ids_BL, attention_mask_BL)]
        output = stock.base_model(**inputs)
    if "last_hidden_state" in output:
        outputs["sentence_embedding"] = layers.pooled(trained.pooling, output["last_hidden_state"], attention_mask_BL)
        outputs[HIDDEN] = output["last_hidden_state"]
    return {name: values.numpy() for name, values in outputs.items()}


def _predicted(trained: TrainedModel, input_ids_BL: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the flags [B, L] of the positions at which the graph predicts a token."""
    place_BL = attention_mask_BL.cumsum(1) * attention_mask_BL
    is_mask_BL: Tensor = input_ids_BL == trained.tokenizer.mask_token_id
    is_last_BL: Tensor = place_BL == attention_mask_BL.sum(1, keepdim=True)
    return is_mask_BL if trained.kind.fills_masks else is_last_BL
