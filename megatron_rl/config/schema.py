"""The schema as a flat list of dotted keys: what rendering, documentation and spelling advice read."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatron_rl.config.base import Section
from megatron_rl.config.run import RunConfig

REQUIRED = object()
"""Default of a key that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaKey:
    """One key. Example: ``actor.optim.lr``, a number, default ``1e-6``."""

    dotted: str
    field: FieldInfo
    default: Any
    """Value, section instance, or ``REQUIRED``."""
    section: type[Section] | None
    """The section class behind the key; None for a leaf."""

    @property
    def name(self) -> str:
        """Last part of the dotted key."""
        return self.dotted.rpartition(".")[2]

    @property
    def depth(self) -> int:
        """How many sections the key lies in."""
        return self.dotted.count(".")

    @property
    def is_free(self) -> bool:
        """Whether any key may follow below (a ``dict`` handed to foreign code)."""
        return typing.get_origin(self.field.annotation) is dict


def _members(annotation: Any) -> tuple[Any, ...]:
    """Alternatives of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _section_of(annotation: Any) -> type[Section] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def _default_of(name: str, field: FieldInfo, parent: Section | None) -> Any:
    if parent is not None:
        return dict(parent)[name]
    return REQUIRED if field.default is PydanticUndefined else field.default


def section_keys(section: type[Section], prefix: str = "", instance: Section | None = None) -> Iterator[SchemaKey]:
    """Keys of one section, depth first, in declaration order; ``instance`` supplies defaults where the parent has one."""
    for name, field in section.model_fields.items():
        dotted = f"{prefix}.{name}" if prefix else name
        default = _default_of(name, field, instance)
        nested = _section_of(field.annotation)
        yield SchemaKey(dotted=dotted, field=field, default=default, section=nested)
        if nested is not None:
            yield from section_keys(nested, dotted, default if isinstance(default, Section) else None)


def all_keys() -> dict[str, SchemaKey]:
    """Every key of a run's configuration by dotted name, sections included."""
    return {key.dotted: key for key in section_keys(RunConfig)}


def type_text(field: FieldInfo) -> str:
    """What a field accepts, in words: ``integer > 0 or null``, ``one of: none, token, sequence``."""
    members = [_member_text(member) for member in _members(field.annotation)]
    bounds = " ".join(filter(None, (_bound_text(item) for item in field.metadata)))
    if bounds:
        members[0] = f"{members[0]} {bounds}"
    return " or ".join(members)


def _member_text(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        base, *metadata = typing.get_args(annotation)
        return " ".join(filter(None, (_member_text(base), *(_bound_text(item) for item in metadata))))
    if origin is Literal:
        return "one of: " + ", ".join(str(choice) for choice in typing.get_args(annotation))
    if origin is list:
        return f"list of {_member_text(typing.get_args(annotation)[0])}"
    if origin is tuple:
        return f"{len(typing.get_args(annotation))} numbers"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {bool: "true or false", int: "integer", float: "number", str: "text", type(None): "null"}
    return names.get(annotation, str(annotation))


def _bound_text(constraint: object) -> str:
    signs = {"Gt": ">", "Ge": ">=", "Lt": "<", "Le": "<="}
    kind = type(constraint).__name__
    if kind not in signs:
        return ""
    bound = getattr(constraint, kind.lower())
    return f"{signs[kind]} {bound:g}"
