"""A table of embeddings narrowed to the tokens that a training can meet.

A thousand sentences hold a tenth of a vocabulary. An optimizer goes through every row nevertheless, through its
gradient and both its moments: of a small encoder, through most of all parameters. Rows without a gradient would only
decay; here they stay as they are.

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
"""Of the vocabulary that is trained, above which narrowing gains too little."""
_NOT_TRAINED = -1


class NarrowEmbedding(nn.Embedding):
    """Answers for every token as the table it stands for; its `weight` are the rows of the tokens that are trained."""

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
            _weight=whole_VH[trained_U],
        )
        self._whole_padding_idx = whole.padding_idx
        for name, tensor in (("whole_VH", whole_VH), ("trained_U", trained_U), ("place_V", place_V)):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """`input_ids_BL` → `hidden_BLH`."""
        place_BL = self.place_V[input]
        trained_BLH = super().forward(place_BL.clamp(min=0))
        is_trained_BL = place_BL != _NOT_TRAINED
        return torch.where(is_trained_BL[..., None], trained_BLH, functional.embedding(input, self.whole_VH))

    def widened(self) -> nn.Embedding:
        """The whole table, with what was trained in its place."""
        whole_VH = self.whole_VH.index_copy(0, self.trained_U, self.weight.detach())
        vocab_size, hidden_size = whole_VH.shape
        return nn.Embedding(vocab_size, hidden_size, padding_idx=self._whole_padding_idx, _weight=whole_VH)


def narrow(model: TaskModel, token_ids: Iterable[npt.NDArray[np.int64]]) -> None:
    """Train of the embedding only the rows of tokens that the arrays hold. A model stays as it is if its embedding is
    not trained at all, is tied to another matrix, is no plain table, or if the tokens are most of its vocabulary.
    """
    whole = model.get_input_embeddings()
    if type(whole) is not nn.Embedding or not whole.weight.requires_grad or _is_tied(model, whole.weight):
        return
    trained_U = torch.from_numpy(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *token_ids])))
    if 0 < len(trained_U) <= _LARGEST_SHARE * whole.num_embeddings:
        model.set_input_embeddings(NarrowEmbedding(whole, trained_U))


def widen(model: TaskModel) -> None:
    """Put the whole table back; a model that was not narrowed stays as it is."""
    table = model.get_input_embeddings()
    if isinstance(table, NarrowEmbedding):
        model.set_input_embeddings(table.widened())


def _is_tied(model: TaskModel, weight: Tensor) -> bool:
    named = model.named_parameters(remove_duplicate=False)
    return sum(parameter is weight for _, parameter in named) > 1
