"""Which weights of an encoder a task trains: by depth, through low-rank adapters, and with a narrowed embedding table.

Low layers hold knowledge of language, high layers that of the last task.

In low-rank adaptation (LoRA, Hu et al. 2022) matrices are frozen, and a product of two thin ones is trained beside
each. peft injects the adapters into the model in place; merging leaves a model with plain weights.

A thousand sentences contain a tenth of a vocabulary. The optimizer would still update every row of the embedding table
with its gradient and two moments, and in a small encoder the table holds most of the parameters. Rows without a
gradient would only decay; here they stay unchanged.

Shapes: V vocabulary, H hidden, U tokens that are trained; B rows of a batch, L longest row.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.model import EncoderModel
from clozeline.encoder.own import OwnModel
from clozeline.params.tasks import LoraParams
from clozeline.system.errors import ParamsError
from clozeline.tasks.heads import TaskModel

_EMBEDDINGS = 0
# Share of trained tokens in the vocabulary above which narrowing gains too little.
_LARGEST_SHARE = 0.5
_NOT_TRAINED = -1


def layers_of(model: TaskModel) -> nn.ModuleList:
    """Return the repeated layers, lowest first. ALBERT shares one layer, so it has one.

    Raises:
        ParamsError: it is your own encoder, and has no `ModuleList`.
    """
    if isinstance(model, EncoderModel):
        return model.encoder.layers
    if isinstance(model, OwnModel):
        if model.layers is None:
            raise ParamsError(
                f"`lora`, `frozen_layers`, `layer_decay`: `{model.config.model_params.family}` has no ModuleList",
                do="put the layers into a torch.nn.ModuleList, lowest first, or remove these knobs from the task",
            )
        return model.layers
    wanted = int(model.config.num_hidden_layers)
    found = [inner for inner in model.base_model.modules() if isinstance(inner, nn.ModuleList) and len(inner) == wanted]
    assert found, f"{type(model).__name__} has no ModuleList of {wanted} layers"
    return found[0]


def depth_of_each(model: TaskModel) -> dict[int, int]:
    """Map `id` of a parameter to its depth: 0 for embeddings, 1 for the lowest layer, …, number of layers + 1 for the
    head.
    """
    layers = layers_of(model)
    in_layer = {id(parameter): place for place, layer in enumerate(layers, start=1) for parameter in layer.parameters()}
    # Tables, their norm, and the projection to the layers' width have "embedding" in their name.
    in_embeddings = {id(parameter) for name, parameter in model.base_model.named_parameters() if "embedding" in name}
    top = len(layers) + 1
    return {
        id(parameter): in_layer.get(id(parameter), _EMBEDDINGS if id(parameter) in in_embeddings else top)
        for parameter in model.parameters()
    }


def freeze(model: TaskModel, num_layers: int) -> None:
    """Freeze the embeddings and the lowest `num_layers` layers; the backward pass skips them.

    Raises:
        ParamsError: the encoder has fewer layers.
    """
    most = len(layers_of(model))
    if num_layers > most:
        raise ParamsError(
            f"`frozen_layers: {num_layers}` of the task exceeds the {most} layers of the encoder",
            do="lower it, or set null to train every weight",
        )
    depths = depth_of_each(model)
    for parameter in model.parameters():
        if depths[id(parameter)] <= num_layers:
            parameter.requires_grad_(False)


def rate_by_depth(model: TaskModel, layer_decay: float) -> Callable[[nn.Parameter], float]:
    """Return the factor of a parameter's learning rate: 1 for the head, and `layer_decay` times that of the layer above
    for each layer (discriminative fine-tuning, Howard & Ruder 2018, section 3.2).
    """
    depths = depth_of_each(model)
    top = len(layers_of(model)) + 1
    return lambda parameter: layer_decay ** (top - depths[id(parameter)])


def add(model: TaskModel, params: LoraParams, seed: int) -> None:
    """Add an adapter to every matrix of the layers; only the adapters and the head are trained.

    Adapters are drawn from `seed`, without touching the global random state. At the start they change no answer.
    """
    from peft import LoraConfig, inject_adapter_in_model

    in_encoder = {id(parameter) for parameter in model.base_model.parameters()}
    in_head = [parameter for parameter in model.parameters() if id(parameter) not in in_encoder]
    in_layers = {id(inner) for inner in layers_of(model).modules() if isinstance(inner, nn.Linear)}
    names = [name for name, inner in model.named_modules() if id(inner) in in_layers]
    config = LoraConfig(r=params.rank, lora_alpha=params.alpha, lora_dropout=params.dropout, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for parameter in in_head:
        parameter.requires_grad_(True)


def merge(model: TaskModel) -> None:
    """Add each adapter to its matrix and remove it; a model without adapters is left unchanged."""
    if not any(".lora_" in name for name, _ in model.named_parameters()):
        return  # skips the import of peft, which takes seconds
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, inner in list(model.named_modules()):
        if isinstance(inner, BaseTunerLayer):
            inner.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, inner.get_base_layer())
    model.requires_grad_(True)


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
    if type(whole) is not nn.Embedding or not whole.weight.requires_grad:
        return
    if sum(parameter is whole.weight for _, parameter in model.named_parameters(remove_duplicate=False)) > 1:
        return  # tied
    trained_U = torch.from_numpy(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *token_ids])))
    if 0 < len(trained_U) <= _LARGEST_SHARE * whole.num_embeddings:
        model.set_input_embeddings(NarrowEmbedding(whole, trained_U))


def widen(model: TaskModel) -> None:
    """Restore the whole table; a model that was not narrowed is left unchanged."""
    table = model.get_input_embeddings()
    if isinstance(table, NarrowEmbedding):
        model.set_input_embeddings(table.widened())
