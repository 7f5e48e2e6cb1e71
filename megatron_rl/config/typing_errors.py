"""Pydantic's findings in the user's words: key, what was given, what is accepted."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from megatron_rl.config.schema import SchemaKey, type_text
from megatron_rl.config.spelling import nearest_key


def describe(value: Any) -> str:
    """A value as it would be typed, with its type: ``8.0 (number)``, ``"1e-6" (text)``."""
    kinds = {bool: "true/false", int: "integer", float: "number", str: "text", list: "list", dict: "mapping"}
    if value is None:
        return "null"
    return f"{json.dumps(value, ensure_ascii=False, default=str)} ({kinds.get(type(value), type(value).__name__)})"


def unknown_key(dotted: str, keys: dict[str, SchemaKey]) -> str:
    """Message for a key the schema lacks."""
    close = nearest_key(dotted, keys)
    advice = f"did you mean {close}?" if close else "see docs/configuration.md or --cfg job for the keys"
    return f"{dotted}: no such key; {advice}"


def _known_prefix(parts: tuple[str, ...], keys: dict[str, SchemaKey]) -> str | None:
    for length in range(len(parts), 0, -1):
        dotted = ".".join(parts[:length])
        if dotted in keys:
            return dotted
    return None


def _hint(key: SchemaKey, value: Any) -> str:
    accepts = type_text(key.field)
    if accepts.startswith("list") and isinstance(value, str):
        return f"; write {key.dotted}=[{value}]"
    if accepts.startswith("text") and isinstance(value, int | float):
        return f"; quote it: '{key.dotted}=\"{value}\"'"
    if isinstance(value, str) and accepts.startswith(("integer", "number")) and any(char.isdigit() for char in value):
        return "; leave the quotes out"
    return ""


def _message(error: ErrorDetails, keys: dict[str, SchemaKey]) -> str:
    parts = tuple(str(part) for part in error["loc"])
    dotted = ".".join(parts)
    if error["type"] == "extra_forbidden":
        return unknown_key(dotted, keys)
    if error["type"] == "missing" and dotted in keys:
        return f"{dotted}: required but not set (expected {type_text(keys[dotted].field)})"
    prefix = _known_prefix(parts, keys)
    if prefix is None:
        return f"{dotted}: {error['msg']}, got {describe(error['input'])}"
    key = keys[prefix]
    accepts = type_text(key.field)
    if prefix != dotted and accepts.startswith("list of "):
        return f"{prefix}: item {parts[-1]} is {describe(error['input'])}, expected {accepts.removeprefix('list of ')}"
    return f"{prefix}: got {describe(error['input'])}, expected {accepts}{_hint(key, error['input'])}"


def messages(failure: ValidationError, keys: dict[str, SchemaKey]) -> list[str]:
    """One message per key, in the order found."""
    return list(dict.fromkeys(_message(error, keys) for error in failure.errors()))
