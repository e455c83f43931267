"""Low-rank adapters (LoRA, Hu et al. 2022): matrices are frozen, and a product of two thin ones is trained beside each.

peft injects them into the model in place; merging leaves a model with plain weights.
"""

import torch
from torch import nn

from clozeline.params.finetuning import LoraParams
from clozeline.tasks.depths import layers_of
from clozeline.tasks.heads import TaskModel


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
