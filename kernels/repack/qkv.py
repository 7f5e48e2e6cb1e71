"""Pairs of views that reorder attention weights between the two orders engines use.

Grouped (Megatron-Core): ``[query heads; key head; value head]`` for each key/value group in turn. Stacked (vLLM):
``[all query heads; all key heads; all value heads]``. Rows are output channels; a bias is the one-dim case.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor


def qkv_views(grouped: Tensor, stacked: Tensor, num_groups: int, head_dim: int) -> list[tuple[Tensor, Tensor]]:
    """Matching views ``(of grouped, of stacked)`` of the query, key and value parts, each ``[groups, heads, head_dim, ...]``.

    Both tensors have ``(heads + 2 * num_groups) * head_dim`` rows in all, on one tensor-parallel rank.
    """
    assert grouped.shape == stacked.shape and grouped.shape[0] % (num_groups * head_dim) == 0
    per_group = grouped.shape[0] // (num_groups * head_dim)
    num_queries = per_group - 2
    by_group = grouped.view(num_groups, per_group, head_dim, *grouped.shape[1:])
    bounds = (0, num_queries, num_queries + 1, per_group)
    pairs = []
    for low, high in pairwise(bounds):
        rows = slice(low * num_groups * head_dim, high * num_groups * head_dim)
        part = stacked[rows].view(num_groups, high - low, head_dim, *stacked.shape[1:])
        pairs.append((by_group[:, low:high], part))
    return pairs
