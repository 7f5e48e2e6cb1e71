"""Where each piece of each logical tensor is stored: the one language of sync, import, export and planning.

The coordinate system is the Hugging Face checkpoint: a *logical tensor* is one of its tensors, by name. A *fragment*
says that a box of it lies, strided, in a buffer of some rank. A layout is the list of fragments of every rank, so a
transfer between any two layouts is an intersection of boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from operator import sub


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """One tensor of the Hugging Face checkpoint. Example: ``LogicalTensor("model.norm.weight", (64,))``."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A box of a logical tensor and where one rank stores it.

    Element ``start + i`` (``i`` a multi-index inside the box) lies at ``offset + sum(i[d] * strides[d])`` of ``buffer``.
    Example: rows 8..15 of a ``[32, 64]`` projection as the second half of a local ``[16, 64]`` parameter:
    ``Fragment("model.layers.0.self_attn.q_proj.weight", (8, 0), (16, 64), "qkv", 8 * 64, (64, 1))``.
    """

    tensor: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    buffer: str
    """Local name of the parameter."""
    offset: int
    """Elements from the parameter's first element."""
    strides: tuple[int, ...]
    """Elements, one per dim of the box."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the box."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def num_elements(self) -> int:
        """Elements in the box."""
        return prod(map(sub, self.stop, self.start))


RankFragments = tuple[Fragment, ...]
LayoutFn = Callable[[int], RankFragments]
"""Global rank -> what it stores (empty for a rank outside the layout)."""
