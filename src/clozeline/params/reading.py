"""Read params.yaml over the defaults of all knobs, and explain what is wrong with it.

The defaults are the params.yaml of our own project, which the package carries; other projects state their changes.
Written as YAML, params have their keys in order and every alias written out. An error of a room names the fields that
it was given; here they become the names that the caller knows.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, TextIO, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.reader import ReaderError

from clozeline.params.pretraining import BUDGETS, laid_over, where_written
from clozeline.params.project import Params
from clozeline.params.schema import FaultsError, IdleKeyError, UnknownKeyError, section_in
from clozeline.params.tasks import SECTIONS, where_laid
from clozeline.system.errors import ClozelineError, ParamsError
from clozeline.system.files import replacing_file

_HERE = Path(__file__).parent
# The project's own params.yaml: a link in a checkout, a copy in a wheel.
FILE = _HERE / "defaults.yaml"
# Sections that the package has in a file of their own.
_FILES_BESIDE = ("recipes", "presets")
_LAID_OVER = ("recipes", "finetune_defaults")

# Replacements for pydantic messages that mention its internals.
_EXPECTED = {
    "missing": "a value for this key",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a section: indented lines of `key: value`"),
    **dict.fromkeys(("union_tag_not_found", "union_tag_invalid"), f"a kind of task: {', '.join(SECTIONS)}"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("tuple_type", "list_type"), "a list: [one, two]"),
}
_SHOWN_CHARACTERS = 160
_AS_WRITTEN = {"None": "null", "True": "true", "False": "false"}
_NOTHING = ("missing", "union_tag_not_found")

# Sections that other sections are made of.
_LAYERS = {"recipes", "presets", "finetune_defaults"}

Error = TypeVar("Error", bound=ClozelineError)
# Function that gives the name under which a field is known elsewhere; None: it is unknown.
NameOf = Callable[[str], str | None]
# Pattern of a key in back quotes, alone or with its value.
_QUOTED_KEY = re.compile(r"`([a-z]\w*(?:\.\w+)*)(: [^`]*)?`")
# Keys that rooms advise to change although they belong to another stage's section.
_ELSEWHERE = {
    key.rpartition(".")[2]: key
    for key in (
        *("tokenize.algorithm", "tokenize.existing", "tokenize.vocab_size"),
        *("pretrain.model.family", "pretrain.model.max_position_embeddings", "pretrain.objective"),
        *("export.models", "export.opset"),
    )
}


def default_tree() -> Any:
    """Return the default params, for the caller to change."""
    return deepcopy(_defaults())


def with_defaults(tree: Any) -> Any:
    """Return `tree` completed with defaults.

    Keys that a section lacks are added. A mapping whose names the user chooses, such as `finetune` or `export.models`,
    is taken as it is, and so is the budget of `pretrain`, in steps, tokens or epochs. Recipes and presets are added to
    those of the package by name, and values under one of its names are laid over it: section by section in a recipe,
    key by key in a preset, as a task's own values are.
    """
    if not isinstance(tree, Mapping):
        return tree
    defaults = default_tree()
    whole = _completed(tree, defaults, Params)
    whole |= {name: laid_over(defaults[name], own) for name in _LAID_OVER if isinstance(own := tree.get(name), Mapping)}
    if isinstance(own := tree.get("presets"), Mapping):
        known = defaults["presets"]
        laid = {name: {**known[name], **row} for name, row in own.items() if name in known and isinstance(row, Mapping)}
        whole["presets"] = {**known, **own, **laid}
    if isinstance(own := tree.get("pretrain"), Mapping) and any(name in own for name in BUDGETS):
        whole["pretrain"] |= {name: None for name in BUDGETS if name not in own}
    return whole


@cache
def _defaults() -> dict[str, Any]:
    yaml = YAML(typ="safe")
    return {**yaml.load(FILE), **{name: yaml.load(_HERE / f"{name}.yaml") for name in _FILES_BESIDE}}


@cache
def _removed() -> dict[str, str]:
    """Return the keys of earlier versions: what became of each, as the message says it."""
    removed: dict[str, str] = YAML(typ="safe").load(_HERE / "removed.yaml")
    return removed


def _completed(own: Mapping[str, Any], default: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    result = {**default, **own}
    for name, field in kind.model_fields.items():
        inner, given, usual = section_in(field.annotation), own.get(name), default.get(name)
        if inner and isinstance(given, Mapping) and isinstance(usual, Mapping):
            result[name] = _completed(given, dict(usual), inner)
    return result


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
            do="run from its root folder",
        )
    content = path.read_bytes()
    try:
        tree = YAML(typ="safe").load(content.decode("utf-8"))
    except (YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date
        reason = _place_and_reason(path, content, error)
        is_alias = "undefined alias" in reason
        raise ParamsError(
            f"{path} is not YAML",
            given=reason,
            expected="UTF-8 text: `key: value` lines, indented with spaces, each key once",
            do="correct the line named above" + ("; a preset is taken by `preset: NAME`" if is_alias else ""),
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
        raise _all_faults(name, list(_faults_in(error, tree))) from error


def check_key(tree: Any, key: str, name: Path) -> None:
    """Check the value at the dotted `key` of `tree` alone: rules that it shares with other keys may be broken.

    Raises:
        ParamsError: the key is unknown, or its value is of another type or out of range.
    """
    try:
        Params.model_validate(tree)
    except ValidationError as error:
        about = (key, where_set(key, tree))
        faults = [
            fault
            for fault in _faults_in(error, tree)
            if all(f"{place}.".startswith(tuple(f"{one}." for one in about)) for place in fault.given)
        ]
        if faults:
            raise _all_faults(name, faults) from error


def where_set(key: str, tree: Any) -> str:
    """Return the key at which `tree` sets `key`: itself, in a recipe or preset, or in the defaults of tasks."""
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


@dataclass(frozen=True)
class _Fault:
    """What is wrong with the values of some keys."""

    kind: str  # its name in pydantic
    given: Mapping[str, Any]  # values by their dotted keys, at the place where these are written
    expected: str
    cause: ValueError | None  # the error of our own checks; None: pydantic found it


def _faults_in(error: ValidationError, tree: Any) -> Iterator[_Fault]:
    """Yield the faults, those of a `FaultsError` one by one."""
    for record in error.errors():
        cause = record.get("ctx", {}).get("error")
        for one in cause.faults if isinstance(cause, FaultsError) else (cause,):
            if isinstance(one, ValidationError):
                yield from _faults_in(one, tree)
            else:
                yield _fault_of(record, one, tree)


def _fault_of(record: Any, cause: Any, tree: Any) -> _Fault:
    kind, location = record["type"], _location(record)
    key = ".".join(map(str, location)) or "(whole file)"
    if kind == "extra_forbidden":
        place, value, known = where_set(key, tree), record["input"], _keys_beside(record["loc"])
        return _Fault(kind, {place: value}, "", UnknownKeyError(place, str(location[-1]), value, known))
    if cause is not None:  # an error of our own checks has the values of some keys of the section
        expected, values = cause.args
        given = {".".join([*map(str, location), inner]): value for inner, value in values.items()}
    else:
        expected = _EXPECTED.get(kind, record["msg"]).removeprefix("Input should be ")
        given = {key: record["ctx"]["tag"] if kind == "union_tag_invalid" else record["input"]}
    return _Fault(kind, {where_set(name, tree): value for name, value in given.items()}, expected, cause)


def _location(record: Any) -> tuple[int | str, ...]:
    """Return the keys as in the file: pydantic adds a task's kind after its name, and omits a missing key `kind`."""
    keys: tuple[int | str, ...] = record["loc"]
    if record["type"].startswith("union_tag"):
        return (*keys, "kind")
    return keys[:2] + keys[3:] if keys[:1] == ("finetune",) and len(keys) > 2 else keys


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the keys that are allowed in the same section as `location`."""
    is_task = location[0] == "finetune"
    kind: Any = SECTIONS[str(location[2])] if is_task else Params
    for part in location[3 if is_task else 0 : -1]:
        inner = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[part].annotation
        kind = section_in(inner) or inner
    return sorted(kind.model_fields)


def _all_faults(path: Path, given: Sequence[_Fault]) -> ParamsError:
    """Return one error about all faults, each once: unknown keys first, numbered if there are several."""
    unknown = [fault.cause for fault in given if isinstance(fault.cause, UnknownKeyError)]
    faults = sorted(given, key=lambda fault: fault.kind != "extra_forbidden")
    errors = [_error_of(path, fault) for fault in faults if not _follows(fault, unknown)]
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


def _follows(fault: _Fault, unknown: Sequence[UnknownKeyError]) -> bool:
    """Return whether a missing key may only be misspelt; its misspelling is already reported as an unknown key."""
    if fault.kind != "missing":
        return False
    (key,) = fault.given
    is_of_defaults = key.startswith("finetune.") and any(one.place.startswith("finetune_defaults.") for one in unknown)
    return is_of_defaults or key.rpartition(".")[2] in map(_near, unknown)


def _error_of(path: Path, fault: _Fault) -> ParamsError:
    """Return the error about one fault; its problem does not name `path`."""
    if isinstance(fault.cause, UnknownKeyError):
        return _unknown_key(path, fault.cause)
    names = [f"`{name}`" for name in fault.given]
    (value, *_) = fault.given.values()
    remedy = f"set {' or '.join(names)} in {path}"
    if isinstance(fault.cause, IdleKeyError):
        remedy = f"remove it from {path}"
    elif fault.kind == "string_type" and isinstance(value, int | float):  # such as a label
        remedy = f"write it in quotes in {path}: '{_short(value)}'"
    told = ", ".join(f"{name}: {_short(value)}" for name, value in fault.given.items())
    return ParamsError(
        f"{' and '.join(names)} cannot be used{' together' if len(names) > 1 else ''}",
        given="nothing" if fault.kind in _NOTHING else told,
        expected=fault.expected,
        do=remedy,
    )


def _unknown_key(path: Path, unknown: UnknownKeyError) -> ParamsError:
    section, _, rest = unknown.place.partition(".")  # a recipe has the keys of `pretrain`
    place = f"pretrain.{rest.partition('.')[2]}" if section == "recipes" else unknown.place
    near, became = _near(unknown), _removed().get(place) or _removed().get(unknown.name)
    problem, expected = f"unknown key `{unknown.place}`", f"one of: {', '.join(unknown.known)}"
    remedy = f"rename it to `{near}`" if near else "remove it, or correct its name"
    if became:
        problem, expected = f"`{unknown.place}` {became}", "a file without this key"
        remedy = f"rename it in {path}" if became.startswith("is now ") else f"remove it from {path}"
    return ParamsError(problem, given=f"{unknown.name}: {_short(unknown.value)}", expected=expected, do=remedy)


def _near(unknown: UnknownKeyError) -> str | None:
    return next(iter(difflib.get_close_matches(unknown.name, unknown.known, n=1)), None)


def _numbered(parts: Sequence[object]) -> str:
    return ("\n" + " " * 12).join(f"{number}. {part}" for number, part in enumerate(parts, start=1))


def _short(value: object) -> str:
    """Return the value in YAML notation, shortened."""
    text = "{…}" if isinstance(value, dict) else _AS_WRITTEN.get(repr(value), repr(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def complete_tree(params: Params) -> dict[str, Any]:
    """Return the params as the stages take them: the recipe is laid over `pretrain`, and each task is complete."""
    return params.model_dump(mode="json", exclude=_LAYERS)


def write_complete(params: Params, path: Path) -> None:
    """Write the `complete_tree`.

    DVC compares their values: an edit of a default, a recipe or a preset runs the stages whose values it changes. A
    file that says the same already is not touched.

    Raises:
        StorageError: the disk is full.
    """
    text = StringIO()
    write_yaml(complete_tree(params), text)
    if path.is_file() and path.read_text(encoding="utf-8") == text.getvalue():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8")


def write_yaml(tree: Any, stream: TextIO) -> None:
    """Write `tree` with a line for each key."""
    _yaml(on_one_line=False).dump(tree, stream)


def on_one_line(value: Any) -> str:
    """Return the value as YAML on one line."""
    yaml, stream = _yaml(on_one_line=True), StringIO()
    yaml.width = 1 << 20
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("...\n").strip()


def _yaml(*, on_one_line: bool) -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # None in its class
    yaml.representer.ignore_aliases = lambda data: True
    return yaml


def renamed(error: Error, name_of: NameOf, where: str = "", advised: NameOf | None = None) -> Error:
    """Return `error` with other names for those in back quotes.

    Args:
        name_of: returns the new name; None keeps the old one.
        where: place that the error's advice names after the last key.
        advised: like `name_of`, for the advice; None: the same function.
    """
    advised = advised or name_of
    changed = [found.end() for found in _QUOTED_KEY.finditer(error.do) if advised(found[1])]
    end = changed[-1] if changed else 0
    return type(error)(
        _renamed(error.problem, name_of),
        given=_renamed(error.given, name_of) if isinstance(error.given, str) else error.given,
        expected=_renamed(error.expected, name_of),
        do=_renamed(error.do[:end], advised) + (where if changed else "") + _renamed(error.do[end:], advised),
    )


def in_params(error: Error, path: Path, place: str, section: BaseModel, called: str = "") -> Error:
    """Return `error` with its field names replaced by keys of the params.yaml `path`; `section` is the value at
    `place`. `called`: name of the params for the caller; empty: that of the file.
    """
    key_of = _keys_of(path, place, section)
    where = "" if path.name in error.do else f" in {called or path.name}"
    return renamed(error, key_of, where, lambda name: key_of(name) or _ELSEWHERE.get(name))


def with_keys(text: str, path: Path, place: str, section: BaseModel) -> str:
    """Return `text` with the keys of `path` in place of the fields that it names, like `in_params`."""
    key_of = _keys_of(path, place, section)
    return _renamed(text, lambda name: key_of(name) or _ELSEWHERE.get(name))


def _renamed(text: str, name_of: NameOf) -> str:
    return _QUOTED_KEY.sub(lambda found: f"`{name_of(found[1]) or found[1]}{found[2] or ''}`", text)


def _keys_of(path: Path, place: str, section: BaseModel) -> NameOf:
    """Return a function that maps a field to its key in `path`.

    The field belongs to the section, or to its only subsection with such a field, because some rooms get only a
    subsection.
    """

    def key_of(name: str) -> str | None:
        inside = [f"{inner}." for inner, part in section if isinstance(part, BaseModel) and _has(part, name)]
        if (is_own := _has(section, name)) or len(inside) == 1:
            return where_set(f"{place}.{'' if is_own else inside[0]}{name}", read_tree(path))
        return None

    return key_of


def _has(section: object, name: str) -> bool:
    """Return whether the section has such a field; a part that is null counts as having any."""
    for part in name.split("."):
        if not isinstance(section, BaseModel):
            return section is None
        if part not in type(section).model_fields:
            return False
        section = getattr(section, part)
    return True
