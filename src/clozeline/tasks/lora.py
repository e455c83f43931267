"""Low-rank adapters (Hu et al. 2022): the matrices stay, and a product of two thin ones is learned beside each.

They are peft's, put into the model as it is; merged, they leave no trace: the weights are plain ones again.
"""

import torch
from torch import nn

from clozeline.params.finetuning import LoraParams
from clozeline.tasks.depths import layers_of
from clozeline.tasks.heads import TaskModel


def add(model: TaskModel, params: LoraParams, seed: int) -> None:
    """Put adapters beside every matrix of the layers; they, and the head, are all that is trained.

    They are a function of `seed`, and the global random state stays. At the start they change no answer.
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
    """Add each adapter to the matrix it stands beside, and take it away; a model without adapters stays as it is."""
    if not any(".lora_" in name for name, _ in model.named_parameters()):
        return  # without peft, which takes seconds to load
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, inner in list(model.named_modules()):
        if isinstance(inner, BaseTunerLayer):
            inner.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, inner.get_base_layer())
    model.requires_grad_(True)
