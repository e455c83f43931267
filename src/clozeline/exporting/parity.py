"""Whether an exported graph computes what the trained model computes.

Shapes: B texts, L tokens, M masks in all texts together, V vocabulary, C classes, H hidden.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from clozeline.exporting.trained import TrainedModel
from clozeline.inference.batching import Batch
from clozeline.inference.session import GraphSession
from clozeline.model.pooling import mean_of_tokens

BATCH_SIZES = (1, 3)
_LENGTHS = (2, 7, 128)
"""Those that the model reads, and the longest that it does: a graph may have kept a size of its traced example."""


def largest_difference(
    trained: TrainedModel, graph: Path, input_names: tuple[str, ...], batch_sizes: Sequence[int] = BATCH_SIZES
) -> float:
    """Largest absolute difference of any output, over batches of 1 and 3 texts of 2, 7, 128 and `max_length` tokens.

    The texts of a batch differ in length, so that all but one are padded; the other side is the stock transformers
    model, which knows nothing of masks picked out or of pooling.
    """
    session = GraphSession(graph, input_names=input_names, num_threads=torch.get_num_threads())
    differences = [
        float(np.abs(expected - session.run(batch, output)[0]).max())
        for batch in _batches(trained, batch_sizes)
        for output, expected in _stock_outputs(trained, batch).items()
    ]
    return max(differences)


def _batches(trained: TrainedModel, batch_sizes: Sequence[int]) -> Iterator[Batch]:
    tokenizer = trained.tokenizer
    generator = np.random.default_rng(0)
    for batch_size in batch_sizes:
        for length in (*(short for short in _LENGTHS if short < trained.max_length), trained.max_length):
            lengths_B = np.linspace(length, length / 2, batch_size).round().astype(int)
            attention_mask_BL = (np.arange(length) < lengths_B[:, None]).astype(np.int64)
            input_ids_BL = generator.integers(trained.model.config.vocab_size, size=(batch_size, length))
            if tokenizer.mask_token_id is not None:
                input_ids_BL[:, length // 3] = tokenizer.mask_token_id
            input_ids_BL[attention_mask_BL == 0] = tokenizer.pad_token_id
            yield Batch(tuple(range(batch_size)), input_ids_BL, attention_mask_BL)


@torch.inference_mode()
def _stock_outputs(trained: TrainedModel, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
    input_ids_BL, attention_mask_BL = torch.from_numpy(batch.input_ids_BL), torch.from_numpy(batch.attention_mask_BL)
    output = trained.model(input_ids=input_ids_BL, attention_mask=attention_mask_BL)
    if trained.task == "feature-extraction":
        return {"sentence_embedding": mean_of_tokens(output.last_hidden_state, attention_mask_BL).numpy()}
    logits = output.logits
    if trained.task == "text-classification":
        return {"logits": logits.numpy()}
    hidden_BLH = trained.model.base_model(input_ids=input_ids_BL, attention_mask=attention_mask_BL).last_hidden_state
    return {
        "logits": logits[input_ids_BL == trained.tokenizer.mask_token_id].numpy(),
        "sentence_embedding": mean_of_tokens(hidden_BLH, attention_mask_BL).numpy(),
    }
