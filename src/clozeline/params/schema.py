"""Base class of every section of params.yaml: frozen fields, no unknown keys, rules between keys."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from clozeline.system.errors import PortableError

Share = Annotated[float, Field(ge=0, le=1)]
Requested = Literal["auto", "fp32", "bf16", "fp16"]
Fraction = Annotated[float, Field(gt=0, lt=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
# Keys of a section (dotted, separated by spaces), the condition on their values, and the `expected` part of the error.
Rule = tuple[str, Callable[..., bool], str]


class UnknownKeyError(PortableError, ValueError):
    """A key that its section does not have."""

    def __init__(self, place: str, name: str, value: object, known: Sequence[str]) -> None:
        """`place` is dotted and ends with `name`."""
        super().__init__(f"one of: {', '.join(known)}", {place: value})
        self.place = place
        self.name = name
        self.value = value
        self.known = known


class IdleKeyError(PortableError, ValueError):
    """A known key that has no effect there."""

    def __init__(self, place: str, value: object, expected: str) -> None:
        super().__init__(expected, {place: value})


class FaultsError(PortableError, ValueError):
    """Several faults. Each is an error of this file, a `ValueError(expected, {key: value})`, or pydantic's own."""

    def __init__(self, faults: Sequence[ValueError]) -> None:
        super().__init__(faults)
        self.faults = faults


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_for_number(cls, given: Any, info: ValidationInfo) -> Any:
        """Refuse booleans for numbers, also in a list: `true` would pass for 1."""
        field = cls.model_fields[str(info.field_name)]
        has_boolean = any(isinstance(one, bool) for one in (given if isinstance(given, list) else [given]))
        if has_boolean and {int, float} & _kinds(field.annotation):
            raise PydanticCustomError("truth_for_number", "a number")
        return given

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        faults: list[ValueError] = []
        broken: set[str] = set()
        for keys, holds, expected in self.rules:
            names = keys.split()
            if broken.isdisjoint(names):  # a rule may assume earlier rules on its keys
                given = {key: reduce(getattr, key.split("."), self) for key in names}
                if not holds(*given.values()):
                    faults.append(ValueError(expected, given))
                    broken.update(names)
        if faults:
            raise FaultsError(faults)
        return self


def _kinds(annotation: Any) -> set[type]:
    """Return the classes in `annotation`, at any depth of unions and annotations."""
    own = {annotation} if isinstance(annotation, type) else set()
    return own.union(*map(_kinds, get_args(annotation)))


# Conditions of rules. Null and false count as not set.
def set_for(kind: str) -> Callable[..., bool]:
    return lambda given, name: (given == kind) == (name is not None)


def at_most(value: float | None, limit: float | None) -> bool:
    return value is None or limit is None or value <= limit


def at_least(value: float | None, limit: float | None) -> bool:
    return at_most(limit, value)


def only_with(value: object, condition: object) -> bool:
    return never(value) or not never(condition)


def never_with(value: object, other: object) -> bool:
    return never(value) or never(other)


def never(value: object) -> bool:
    return value is None or value is False


def sum_below_one(*shares: float) -> bool:
    return sum(shares) < 1


def mapping_at(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping under `name`; an empty one if there is something else, which is a fault of its own."""
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section class of a field's annotation, also of an optional one; None if it is not a section."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
