"""Which ranks may form an engine's groups; that vLLM forms them is shown by tests/end_to_end/test_engine_agreement.py."""

from __future__ import annotations

import pytest

from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.group_ranks import require_ascending


@pytest.mark.parametrize("order", [None, (("data", 2), ("tensor", 2))], ids=["consecutive", "distant"])
def test_require_ascending_takes_rank_orders(order: tuple[tuple[str, int], ...] | None) -> None:
    require_ascending(RolloutLayout(tensor=2, data=2, order=order))


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        (RolloutLayout(tensor=2, data=2, permutation=(2, 0, 1, 3)), r"\[2, 0\]"),
        (RolloutLayout(tensor=2, data=2, expert=4, order=(("data", 2), ("tensor", 2))), r"\[0, 2, 1, 3\]"),
    ],
    ids=["tensor", "expert"],
)
def test_require_ascending_rejects_groups_out_of_order(layout: RolloutLayout, ranks: str) -> None:
    with pytest.raises(ValueError, match=rf"the ranks {ranks} of an engine's group must ascend"):
        require_ascending(layout)
