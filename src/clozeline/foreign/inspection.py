"""Inspection of foreign models and tokenizers before transformers opens them.

Settings in a folder or in a hub repository can decide which code runs (CVE-2026-4372 was a field of config.json), and
weights can be a pickle, which is a program. Every function that opens such files inspects them here first.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from clozeline.errors import ArtifactError
from clozeline.foreign.hub import inspected_file

_SETTINGS: Final = ("config.json", "tokenizer_config.json")
_ADAPTER: Final = "adapter_config.json"
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
_PICKLES: Final = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
_REFUSED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "auto_map": (
            "custom code, which would run here",
            "save it with a class that transformers itself has, and delete `auto_map`",
        ),
        "configuration_files": ("another file in its place", "rename that file to config.json"),
        "_attn_implementation_internal": ("code of the hub to run for attention", "delete that line"),
        "_experts_implementation_internal": ("code of the hub to run for experts", "delete that line"),
        "quantization_config": (
            "quantized weights, which are neither trained nor evaluated here",
            "save it in single precision (`model.dequantize().save_pretrained(FOLDER)`)",
        ),
    }
)
"""Refused keys, at any depth: what each requires, and what to do."""
_CLASS: Final = "AutoModelForMaskedLM"
"""Class with which a model is converted if its config.json names none."""
_ATTENTION: Final = ("_attn_implementation", "attn_implementation")
_OWN_ATTENTION: Final = (None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Implementations in transformers itself; any other name is that of a kernel to fetch from the hub."""


def inspect_settings(name: str, revision: str | None = None) -> None:
    """Inspect a tokenizer, or a model whose weights are not loaded.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there. Missing files are ignored here.

    Raises:
        ArtifactError: it is an adapter, or asks for code, kernels or a form of weights outside transformers.
        TransientError: the hub does not answer.
    """
    for folder in _with_inner(name):
        for file in _SETTINGS:
            path = inspected_file(folder, file, revision)
            for key, value in _entries(_read(path)) if path else ():
                _check_entry(f"{folder}/{file}", key, value)
        if inspected_file(folder, _ADAPTER, revision):
            raise ArtifactError(
                f"{folder} holds an adapter ({_ADAPTER}), not a whole model",
                do="merge it with its model: `model.merge_and_unload().save_pretrained(FOLDER)`",
            )


def inspect_model(name: str, revision: str | None = None) -> None:
    """Inspect the settings and the weights of a model, and of models inside its folder, such as a generator.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        ArtifactError: as in `inspect_settings`; or its weights exist as a pickle alone.
        TransientError: the hub does not answer.
    """
    inspect_settings(name, revision)
    for folder in _with_inner(name):
        weights = [path for file in _WEIGHTS if (path := inspected_file(folder, file, revision))]
        for path in weights:
            _check_shards(path)
        pickles = sorted(path.name for ending in _PICKLES for path in Path(folder).glob(ending))
        on_hub = not Path(folder).is_dir() and inspected_file(folder, "config.json", revision)
        if not weights and (pickles or on_hub):
            config = inspected_file(folder, "config.json", revision)
            given = ", ".join(pickles) or f"neither {' nor '.join(_WEIGHTS)}"
            _refuse_pickle(folder, given, _class_in(config))


def _with_inner(name: str) -> list[str]:
    return [name, *sorted(str(path.parent) for path in Path(name).glob("*/config.json"))]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # damaged: the opening caller reports it
        return None


def _entries(facts: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key in a JSON value, at any depth, with its value."""
    if isinstance(facts, dict):
        yield from facts.items()
    for inner in facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ():
        yield from _entries(inner)


def _check_entry(file: str, key: str, value: Any) -> None:
    is_kernel = key in _ATTENTION and value not in _OWN_ATTENTION
    if is_kernel:
        asks_for, do = "a kernel of the hub, which would run here", "delete that line"
    elif key in _REFUSED and value is not None:
        asks_for, do = _REFUSED[key]
    else:
        return
    raise ArtifactError(f"{file} requires {asks_for} (`{key}: {json.dumps(value)[:200]}`)", do=do)


def _check_shards(index: Path) -> None:
    """Refuse an index whose shards are not all safetensors files beside it: it may name any file, such as a pickle."""
    facts = _read(index) if index.suffix == ".json" else None
    places = facts.get("weight_map") if isinstance(facts, dict) else None
    for place in sorted(set(map(str, places.values()))) if isinstance(places, dict) else ():
        if Path(place).name != place or Path(place).suffix != ".safetensors":
            _refuse_pickle(str(index), place)


def _class_in(config: Path | None) -> str:
    """Return the class of transformers that config.json names, with which the head is converted too."""
    facts = _read(config) if config else None
    named = facts.get("architectures") if isinstance(facts, dict) else None
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) and first.isidentifier() else _CLASS


def _refuse_pickle(where: str, given: str, class_name: str = _CLASS) -> None:
    raise ArtifactError(
        f"{where} has no weights that can be read without running code, only {given}: a pickle is a program",
        do="if you trust it, convert it with its tokenizer, and use the folder NEW: "
        f'`python -c "from transformers import {class_name}, AutoTokenizer; '
        f"[it.from_pretrained('{where}').save_pretrained('NEW') for it in ({class_name}, AutoTokenizer)]\"`",
    )
