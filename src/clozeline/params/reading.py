"""Read params.yaml, and explain what is wrong with it."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.reader import ReaderError

from clozeline.errors import ParamsError
from clozeline.params.defaults import with_defaults
from clozeline.params.finetuning import SECTIONS, FinetuneParams
from clozeline.params.finetuning.layers import where_laid
from clozeline.params.project import Params
from clozeline.params.recipes import where_written
from clozeline.params.section import FaultsError, IdleKeyError, UnknownKeyError, section_in

_EXPECTED: Final = {
    "missing": "a value for this key",
    "dict_type": "a section: indented lines of `key: value`",
    "model_type": "a section: indented lines of `key: value`",
    "model_attributes_type": "a section: indented lines of `key: value`",
    "union_tag_not_found": f"a kind of task: {', '.join(SECTIONS)}",
    "union_tag_invalid": f"a kind of task: {', '.join(SECTIONS)}",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list: [one, two]",
    "list_type": "a list: [one, two]",
}
"""Replacements for pydantic messages that mention its internals."""
_REMOVED: Final[Mapping[str, str]] = {
    "preprocess.large_file_mb": "is gone: let clones share DVC's cache (docs/cluster.md)",
    "tokenize.large_file_mb": "is gone: let clones share DVC's cache (docs/cluster.md)",
}
"""Keys of earlier versions: what became of each, as the message says it (`is now …` or `is gone: …`)."""
_SHOWN_CHARACTERS: Final = 160
_AS_WRITTEN: Final = {"None": "null", "True": "true", "False": "false"}
_NOTHING: Final = ("missing", "union_tag_not_found")


def read_params(path: Path) -> Params:
    """Read and check `path`, which may state only what differs from the defaults.

    Raises:
        ParamsError: the file has faults; the message lists each key with its given and its expected value.
    """
    return params_in(read_tree(path), path)


def read_tree(path: Path) -> Any:
    """Return the YAML in `path`, completed with the defaults; its values are not checked.

    Raises:
        ParamsError: the file is missing or empty, or it is not YAML.
    """
    if not path.is_file():
        raise ParamsError(
            f"there is no {path}",
            given=path.resolve(),
            expected="the project's params.yaml",
            do="run from the project's root folder",
        )
    content = path.read_bytes()
    try:
        tree = YAML(typ="safe").load(content.decode("utf-8"))
    except (YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date
        raise ParamsError(
            f"{path} is not YAML",
            given=_place_and_reason(path, content, error),
            expected="UTF-8 text: `key: value` lines, indented with spaces, each key once",
            do="correct the line named above",
        ) from error
    if tree is None:
        raise ParamsError(f"{path} is empty", given="nothing", expected="sections", do=f"run `git checkout -- {path}`")
    return with_defaults(tree)


def params_in(tree: Any, name: Path) -> Params:
    """Return the params in `tree`, which messages call `name`.

    Raises:
        ParamsError: the tree has faults, as in `read_params`.
    """
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise _all_faults(name, tree, list(_flat(error))) from error


def check_key(tree: Any, key: str, name: Path) -> None:
    """Check the value at the dotted `key` of `tree` alone: rules that it shares with other keys may be broken.

    Raises:
        ParamsError: the key is unknown, or its value is of another type or out of range.
    """
    try:
        Params.model_validate(tree)
    except ValidationError as error:
        if faults := [fault for fault in _flat(error) if _is_about(fault, key, tree)]:
            raise _all_faults(name, tree, faults) from error


def _is_about(fault: Any, key: str, tree: Any) -> bool:
    """Return whether the fault is in `key` or a part of it, and in nothing else."""
    unknown = _unknown(fault, tree)
    if unknown is not None:
        places = [unknown.place]
    elif fault["type"] == "value_error":  # of our own checks, with the keys that it is about
        places = [".".join([*map(str, _location(fault)), inner]) for inner in fault["ctx"]["error"].args[-1]]
    else:
        places = [_key(fault)]
    return all(place == key or place.startswith(f"{key}.") for place in places)


def where_set(path: Path, key: str) -> str:
    """Return the key at which `path`, a readable file, sets `key`: itself, in a recipe, or in the defaults of tasks."""
    return _where_set(key, read_tree(path))


def _where_set(key: str, tree: Any) -> str:
    return where_laid(where_written(key, tree), tree)


def _place_and_reason(path: Path, content: bytes, error: Exception) -> str:
    reason = " ".join(str(error).replace('"<unicode string>"', str(path)).split())
    if isinstance(error, UnicodeDecodeError):
        start = error.start
    elif isinstance(error, ReaderError):
        start = content.index(chr(error.character).encode("utf-8"))
    else:
        return reason.partition(" To suppress this check")[0]
    line = content.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: {reason}"


def _all_faults(path: Path, tree: Any, given: Sequence[Any]) -> ParamsError:
    """Return one error about all faults, each once: unknown keys first, numbered if there are several."""
    faults = sorted(given, key=lambda fault: fault["type"] != "extra_forbidden")
    unknown = [found for fault in faults if (found := _unknown(fault, tree))]
    errors = [_error_of(path, tree, fault) for fault in faults if not _follows(fault, unknown)]
    first, *others = {one.problem: one for one in errors}.values()
    if not others:
        return ParamsError(f"{path}: {first.problem}", given=first.given, expected=first.expected, do=first.do)
    every = [first, *others]
    problems = "".join(f"\n  {number}. {one.problem}" for number, one in enumerate(every, start=1))
    return ParamsError(
        f"{path} has {len(every)} faults{problems}",
        given=_numbered([one.given for one in every]),
        expected=_numbered([one.expected for one in every]),
        do=_numbered([one.do for one in every]),
    )


def _flat(error: ValidationError) -> Iterator[Any]:
    """Yield pydantic's records of faults, those of a `FaultsError` one by one."""
    for fault in error.errors():
        cause = fault.get("ctx", {}).get("error")
        for inner in cause.faults if isinstance(cause, FaultsError) else ():
            if isinstance(inner, ValidationError):
                yield from _flat(inner)
            else:
                yield {**fault, "ctx": {"error": inner}}
        if not isinstance(cause, FaultsError):
            yield fault


def _unknown(fault: Any, tree: Any) -> UnknownKeyError | None:
    """Return the unknown key of this fault, with the place where it is written; None: it is a fault of another sort."""
    cause = fault.get("ctx", {}).get("error")
    if fault["type"] == "extra_forbidden":
        place, location = _where_set(_key(fault), tree), fault["loc"]
        return UnknownKeyError(place, str(location[-1]), fault["input"], _keys_beside(location))
    return cause if isinstance(cause, UnknownKeyError) else None


def _follows(fault: Any, unknown: Sequence[UnknownKeyError]) -> bool:
    """Return whether a missing key may only be misspelt; its misspelling is already reported as an unknown key."""
    is_task = fault["loc"][:1] == ("finetune",)
    return fault["type"] == "missing" and any(
        _near(one) == fault["loc"][-1] or (is_task and one.place.startswith("finetune_defaults.")) for one in unknown
    )


def _error_of(path: Path, tree: Any, fault: Any) -> ParamsError:
    """Return the error about one fault; its problem does not name `path`."""
    if unknown := _unknown(fault, tree):
        if became := _became(unknown.place):
            return ParamsError(
                f"`{unknown.place}` {became}",
                given=f"{unknown.name}: {_short(unknown.value)}",
                expected="a file without this key",
                do=f"remove it from {path}",
            )
        near = _near(unknown)
        return ParamsError(
            f"unknown key `{unknown.place}`",
            given=f"{unknown.name}: {_short(unknown.value)}",
            expected=f"one of: {', '.join(unknown.known)}",
            do=f"rename it to `{near}`" if near else "remove it, or correct its name",
        )
    expected, given = _expected(fault), {_key(fault): _given(fault)}
    if fault["type"] == "value_error":  # raised by our own checks, with the values of some keys of the section
        expected, values = fault["ctx"]["error"].args
        given = {".".join([*map(str, _location(fault)), inner]): value for inner, value in values.items()}
    given = {_where_set(name, tree): value for name, value in given.items()}
    names = [f"`{name}`" for name in given]
    return ParamsError(
        f"{' and '.join(names)} cannot be used{' together' if len(names) > 1 else ''}",
        given="nothing" if fault["type"] in _NOTHING else ", ".join(f"{k}: {_short(v)}" for k, v in given.items()),
        expected=expected,
        do=_remedy_of_fault(path, fault, " or ".join(names)),
    )


def _became(place: str) -> str | None:
    """Return what became of a key of an earlier version; a recipe has the keys of `pretrain`."""
    section, _, rest = place.partition(".")
    return _REMOVED.get(f"pretrain.{rest.partition('.')[2]}" if section == "recipes" else place)


def _near(unknown: UnknownKeyError) -> str | None:
    return next(iter(difflib.get_close_matches(unknown.name, unknown.known, n=1)), None)


def _numbered(parts: Sequence[object]) -> str:
    return ("\n" + " " * 12).join(f"{number}. {part}" for number, part in enumerate(parts, start=1))


def _remedy_of_fault(path: Path, fault: Any, names: str) -> str:
    if isinstance(fault.get("ctx", {}).get("error"), IdleKeyError):
        return f"remove it from {path}"
    given = fault["input"]
    if fault["type"] == "string_type" and isinstance(given, int | float):  # a label that is a number or a boolean
        return f"write it in quotes in {path}: '{_short(given)}'"
    return f"set {names} in {path}"


def _key(fault: Any) -> str:
    return ".".join(map(str, _location(fault))) or "(whole file)"


def _location(fault: Any) -> tuple[int | str, ...]:
    """Return the keys as in the file: pydantic adds a task's kind after its name, and omits a missing key `kind`."""
    keys: tuple[int | str, ...] = fault["loc"]
    if fault["type"].startswith("union_tag"):
        return (*keys, "kind")
    return keys[:2] + keys[3:] if keys[:1] == ("finetune",) and len(keys) > 2 else keys


def _given(fault: Any) -> object:
    return fault["ctx"]["tag"] if fault["type"] == "union_tag_invalid" else fault["input"]


def _expected(fault: Any) -> str:
    """Return pydantic's message without its phrasing."""
    expected: str = _EXPECTED.get(fault["type"], fault["msg"])
    return expected.removeprefix("Input should be ")


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the keys that are allowed in the same section as `location`."""
    kind: Any = Params
    for part in location[:-1]:
        if kind is FinetuneParams:
            kind = SECTIONS[str(part)]
        elif get_origin(kind) is dict:
            kind = section_in(get_args(kind)[1])
        else:
            inner = kind.model_fields[part].annotation
            kind = section_in(inner) or inner
    return sorted(kind.model_fields)


def _short(value: object) -> str:
    """Return the value in YAML notation, shortened."""
    text = "{…}" if isinstance(value, dict) else _AS_WRITTEN.get(repr(value), repr(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
