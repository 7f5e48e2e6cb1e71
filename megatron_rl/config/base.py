"""The one base class of every configuration section."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen configuration section: unknown keys are errors, types are strict (``true`` is not ``1``)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())
