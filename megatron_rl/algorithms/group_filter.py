"""Which groups of a step are trained on: DAPO's dynamic sampling (Yu et al. 2025, section 3.2; arXiv 2503.14476).

Shape suffixes: G groups, B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from megatron_rl.algorithms.group_stats import group_stats
from megatron_rl.algorithms.pass_at_k import RIGHT_ABOVE
from megatron_rl.config.algorithm import GroupMetric


def differing_groups(metric: GroupMetric, rewards_B: Tensor, group_ids_B: Tensor, counted_B: Tensor) -> Tensor:
    """Bool ``[G]``: the group has two counted samples that differ, so that a group baseline leaves a gradient.

    Args:
        metric: what must differ; ``acc`` is whether the reward exceeds ``RIGHT_ABOVE``.
        rewards_B: f32, sequence rewards before any KL term; anything where not counted.
        group_ids_B: i64, every id in ``[0, G)`` at least once.
        counted_B: bool, samples that take part in baselines: valid, with a response token.
    """
    values_B = (rewards_B > RIGHT_ABOVE).float() if metric == "acc" else rewards_B
    stats = group_stats(values_B, group_ids_B, counted_B)
    differs_G = torch.zeros(int(group_ids_B.max()) + 1, dtype=torch.bool)
    differs_G[group_ids_B[stats.informative_B]] = True
    return differs_G


def choose_groups(differs_G: Sequence[bool], num_groups: int) -> list[int]:
    """Ids of the first ``num_groups`` groups that differ, ascending; too few are filled up with the first that do not.

    So a step has its full size whatever was sampled. A group of equal rewards has advantage 0 under every group estimator
    and adds nothing but its tokens to the loss's denominator.
    """
    assert len(differs_G) >= num_groups
    chosen, others = _first(differs_G, True, num_groups), _first(differs_G, False, num_groups)
    return sorted([*chosen, *others[: num_groups - len(chosen)]])


def candidate_groups(differs_G: Sequence[bool], num_groups: int) -> list[int]:
    """Ids, ascending, of all groups that :func:`choose_groups` may still choose, whatever is sampled behind them."""
    return sorted([*_first(differs_G, True, num_groups), *_first(differs_G, False, num_groups)])


def _first(differs_G: Sequence[bool], wanted: bool, count: int) -> list[int]:
    return list(islice((group for group, differs in enumerate(differs_G) if differs == wanted), count))
