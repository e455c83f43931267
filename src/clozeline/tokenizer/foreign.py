"""A model or a tokenizer of somebody else, inspected before transformers opens it.

What a folder, or a repository of the hub, says of itself can decide what code runs (CVE-2026-4372 was a field of
config.json), and weights can be a pickle, which is a program. Every door to such files passes here first.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from clozeline.errors import ArtifactError
from clozeline.tokenizer.hub import published_file

_SETTINGS: Final = ("config.json", "tokenizer_config.json")
_ADAPTER: Final = "adapter_config.json"
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
_PICKLES: Final = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
_REFUSED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "auto_map": (
            "code of its own, which would run here",
            "save it with a class that transformers itself has, and delete `auto_map`",
        ),
        "configuration_files": ("another file to be read in place of this one", "rename that file to config.json"),
        "_attn_implementation_internal": ("code of the hub to run for attention", "delete that line"),
        "_experts_implementation_internal": ("code of the hub to run for experts", "delete that line"),
        "quantization_config": (
            "weights in a quantized form, which is not what is trained and judged here",
            "save it in single precision (`model.dequantize().save_pretrained(FOLDER)`)",
        ),
    }
)
"""Keyed by name, at any depth: what it asks for, and what to do."""
_ATTENTION: Final = ("_attn_implementation", "attn_implementation")
_OWN_ATTENTION: Final = (None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""What transformers has itself; any other name is that of a kernel to be fetched from the hub."""


def inspect_settings(name: str, revision: str | None = None) -> None:
    """Of a tokenizer, or of a model whose weights are not asked for.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there. What is not there is no fault here.

    Raises:
        ArtifactError: it asks for code, kernels or a form of weights that is not in transformers.
    """
    for folder in _with_inner(name):
        for file in _SETTINGS:
            path = published_file(folder, file, revision)
            for key, value in _entries(_read(path)) if path else ():
                _check_entry(f"{folder}/{file}", key, value)
        if published_file(folder, _ADAPTER, revision):
            raise ArtifactError(
                f"{folder} holds an adapter, whose weights go on top of another model",
                given=_ADAPTER,
                expected="a whole model",
                do="merge the two (`model.merge_and_unload().save_pretrained(FOLDER)`)",
            )


def inspect_model(name: str, revision: str | None = None) -> None:
    """Its settings and its weights; a model that lies inside the folder, such as a generator, is inspected with it.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        ArtifactError: as `inspect_settings`; or its weights are there as a pickle alone.
    """
    inspect_settings(name, revision)
    for folder in _with_inner(name):
        weights = [path for file in _WEIGHTS if (path := published_file(folder, file, revision))]
        for path in weights:
            _check_shards(path)
        pickles = sorted(path.name for ending in _PICKLES for path in Path(folder).glob(ending))
        on_hub = not Path(folder).is_dir() and published_file(folder, "config.json", revision)
        if not weights and (pickles or on_hub):
            _refuse_pickle(folder, ", ".join(pickles) or f"neither {' nor '.join(_WEIGHTS)}")


def _with_inner(name: str) -> list[str]:
    return [name, *sorted(str(path.parent) for path in Path(name).glob("*/config.json"))]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # damaged: the door itself says so
        return None


def _entries(facts: Any) -> Iterator[tuple[str, Any]]:
    """Every name in a JSON value, at any depth, with what stands under it."""
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
    raise ArtifactError(
        f"{file} asks for {asks_for}",
        given=f"{key}: {json.dumps(value)[:200]}",
        expected=f"a model that transformers opens by itself, without `{key}`",
        do=do,
    )


def _check_shards(index: Path) -> None:
    """An index may name any file as a shard, a pickle among them."""
    facts = _read(index) if index.suffix == ".json" else None
    places = facts.get("weight_map") if isinstance(facts, dict) else None
    for place in sorted(set(map(str, places.values()))) if isinstance(places, dict) else ():
        if Path(place).name != place or Path(place).suffix != ".safetensors":
            _refuse_pickle(str(index), place)


def _refuse_pickle(where: str, given: str) -> None:
    raise ArtifactError(
        f"{where} holds no weights that can be read without running code",
        given=given,
        expected="model.safetensors, whole or in shards: a pickle (pytorch_model.bin) is a program",
        do="where you trust it, convert it: `AutoModelForMaskedLM.from_pretrained(OLD).save_pretrained(NEW)`",
    )
