"""How the plane of tokens by vocabulary is cut, and the workspace that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear_logprob.triton import MAX_TILE_ROWS

WORKSPACE_BYTES = 2**30
"""Logits that exist at one time."""
MIN_TILE_ROWS = 256
TOKEN_STEP = 128
"""Token cuts fall on multiples of this: the height of a matrix unit's tile."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Cut of the logit plane. Example: ``Tiling(num_tokens=4096, num_rows=8192)``: 38 x 4 tiles for 16,384 x 151,936."""

    num_tokens: int
    """Positions of one tile."""
    num_rows: int
    """Vocabulary rows of one tile, a power of two."""

    def __post_init__(self) -> None:
        assert self.num_tokens > 0 and 0 < self.num_rows <= MAX_TILE_ROWS
        assert self.num_rows & (self.num_rows - 1) == 0

    def token_cuts(self, num_tokens: int) -> list[slice]:
        """Slices of ``range(num_tokens)``."""
        return _cuts(num_tokens, self.num_tokens)

    def row_cuts(self, num_rows: int) -> list[slice]:
        """Slices of ``range(num_rows)``."""
        return _cuts(num_rows, self.num_rows)


def tall_tiling(num_tokens: int, itemsize: int) -> Tiling:
    """All tokens by as many rows as fit ``WORKSPACE_BYTES`` with a f32 and an ``itemsize`` copy of each logit.

    A tile then holds every term of its rows' weight gradient.
    """
    rows = MAX_TILE_ROWS
    while rows > MIN_TILE_ROWS and num_tokens * rows * (4 + itemsize) > WORKSPACE_BYTES:
        rows //= 2
    return Tiling(max(1, num_tokens), rows)


def wide_tiling(num_tokens: int, num_rows: int, itemsize: int) -> Tiling:
    """Equal token cuts whose whole rows of logits, ``itemsize`` bytes each, take about ``WORKSPACE_BYTES``."""
    fitting = max(TOKEN_STEP, int(WORKSPACE_BYTES * 1.25) // max(1, num_rows * itemsize))
    num_cuts = -(-num_tokens // fitting)
    per_cut = -(-num_tokens // max(1, num_cuts))
    return Tiling(max(1, -(-per_cut // TOKEN_STEP) * TOKEN_STEP), MAX_TILE_ROWS)


class Workspace:
    """One buffer, shown as tiles of any shape up to its size."""

    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(num_elements, dtype=dtype, device=device)

    def tile(self, num_rows: int, num_columns: int) -> Tensor:
        """A contiguous ``[num_rows, num_columns]`` view; earlier views share its memory."""
        return self._buffer[: num_rows * num_columns].view(num_rows, num_columns)


def _cuts(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
