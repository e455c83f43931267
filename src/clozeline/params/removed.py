"""Keys of params.yaml of earlier versions, and what became of them."""

from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = {
    "contract.max_dropped_increase": "is gone: the limit is always 0.2",
    "contract.max_script_shift": "is gone: the limit is always 0.1",
    "contract.min_language_similarity": "is gone: the limit is always 0.7",
    "contract.max_length_index": "is gone: the limit is always 0.25",
    "contract.max_unknown_index": "is gone: the limit is always 0.1",
    "contract.max_conflict_share": "is gone: the limit is always 0.05",
    "contract.max_class_index": "is gone: the limit is always 0.25",
    "preprocess.large_file_mb": "is gone: let clones share DVC's cache (docs/cluster.md)",
    "tokenize.large_file_mb": "is gone: let clones share DVC's cache (docs/cluster.md)",
    "pretrain.validation.max_tokens": "is gone: a validation pass always reads 20,000 tokens",
    "pretrain.validation.num_examples": "is gone: 3 predictions are always logged",
    "evaluate.num_folds": "is gone: there are always 7 passes",
    "evaluate.batch_tokens": "is gone: a batch always has 8,192 tokens, or one row",
    "evaluate.num_examples": "is gone: there are always 12 examples",
    "export.per_token": "is gone: a scale for each token, as with `true`",
    "export.per_channel": "is gone: a scale for each output of a weight, as with `true`",
    "export.num_calibration_texts": "is gone: always 64 texts",
    "export.half": "is gone: convert model.onnx for a GPU server there (docs/exporting.md)",
    "export.gates.min_agreement_texts": "is gone: the limit is always 100",
    "export.gates.min_different_answers": "is gone: the limit is always 2",
    "export.gates.min_metric_items": "is gone: the limit is always 200",
    "export.gates.min_embedding_cosine": "is gone: the limit is always 0.99",
    "export.gates.min_token_cosine": "is gone: the limit is always 0.98",
    "export.gates.min_batch_cosine": "is gone: the limit is always 0.999",
    "export.gates.max_batch_flips": "is gone: the limit is always 0.005",
}
"""Keys of earlier versions: what became of each, as the message says it (`is now …` or `is gone: …`)."""
