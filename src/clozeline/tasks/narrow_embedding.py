"""Embedding table narrowed to the tokens that occur in the training rows.

A thousand sentences contain a tenth of a vocabulary. The optimizer would still update every row with its gradient and
two moments, and in a small encoder the table holds most of the parameters. Rows without a gradient would only decay;
here they stay unchanged.

Shapes: V vocabulary, H hidden, U tokens that are trained; B rows of a batch, L longest row.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.tasks.heads import TaskModel

_LARGEST_SHARE = 0.5
"""Share of trained tokens in the vocabulary above which narrowing gains too little."""
_NOT_TRAINED = -1


class NarrowEmbedding(nn.Embedding):
    """Drop-in for the whole table; `weight` holds only the rows of trained tokens."""

    whole_VH: Tensor
    trained_U: Tensor
    place_V: Tensor

    def __init__(self, whole: nn.Embedding, trained_U: Tensor) -> None:
        whole_VH = whole.weight.detach()
        place_V = torch.full((whole.num_embeddings,), _NOT_TRAINED)
        place_V[trained_U] = torch.arange(len(trained_U))
        pad_place = _NOT_TRAINED if whole.padding_idx is None else int(place_V[whole.padding_idx])
        super().__init__(
            len(trained_U),
            whole.embedding_dim,
            padding_idx=None if pad_place == _NOT_TRAINED else pad_place,
            device="meta",  # no random initialization
        )
        self.weight = nn.Parameter(whole_VH[trained_U])
        self._whole_padding_idx = whole.padding_idx
        for name, tensor in (("whole_VH", whole_VH), ("trained_U", trained_U), ("place_V", place_V)):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return `hidden_BLH` for `input_ids_BL`."""
        place_BL = self.place_V[input]
        trained_BLH = super().forward(place_BL.clamp(min=0))
        is_trained_BL = place_BL != _NOT_TRAINED
        return torch.where(is_trained_BL[..., None], trained_BLH, functional.embedding(input, self.whole_VH))

    def widened(self) -> nn.Embedding:
        """Return the whole table with the trained rows written back."""
        whole_VH = self.whole_VH.index_copy(0, self.trained_U, self.weight.detach())
        table: nn.Embedding = nn.Embedding.from_pretrained(whole_VH, freeze=False, padding_idx=self._whole_padding_idx)
        return table


def narrow(model: TaskModel, token_ids: Iterable[npt.NDArray[np.int64]]) -> None:
    """Train only the embedding rows of the tokens in `token_ids`.

    The model is left unchanged if its embedding is frozen, tied to another matrix or not a plain table, if the tokens
    are more than half of its vocabulary, or if it is your own encoder, which may read its table elsewhere too.
    """
    whole = model.get_input_embeddings()
    if type(whole) is not nn.Embedding or not whole.weight.requires_grad or _is_tied(model, whole.weight):
        return
    trained_U = torch.from_numpy(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *token_ids])))
    if 0 < len(trained_U) <= _LARGEST_SHARE * whole.num_embeddings:
        model.set_input_embeddings(NarrowEmbedding(whole, trained_U))


def widen(model: TaskModel) -> None:
    """Restore the whole table; a model that was not narrowed is left unchanged."""
    table = model.get_input_embeddings()
    if isinstance(table, NarrowEmbedding):
        model.set_input_embeddings(table.widened())


def _is_tied(model: TaskModel, weight: Tensor) -> bool:
    named = model.named_parameters(remove_duplicate=False)
    return sum(parameter is weight for _, parameter in named) > 1
