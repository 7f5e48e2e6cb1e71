"""How fast bytes move, and what a plan takes on such a machine: pure arithmetic on the plan's rounds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from megatron_rl.resharding.plan import ReshardPlan, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Rates of one cluster, per rank and direction."""

    name: str
    ranks_per_node: int
    link_bytes_per_s: float
    """Between two ranks of a node."""
    network_bytes_per_s: float
    """Between two nodes, each rank over its own adapter."""
    copy_bytes_per_s: float
    """Device-to-device copy on one rank, bytes moved (each is read and written)."""
    round_latency_s: float
    """Fixed cost of launching and finishing one round."""

    def same_node(self, a: int, b: int) -> bool:
        """Whether two global ranks share a node."""
        return a // self.ranks_per_node == b // self.ranks_per_node


H200_NODE = Fabric(
    name="h200",
    ranks_per_node=8,
    link_bytes_per_s=350e9,
    network_bytes_per_s=50e9,
    copy_bytes_per_s=2.15e12,
    round_latency_s=30e-6,
)
"""NVLink send + receive and copies as measured on H200; 400 Gbit/s per GPU between nodes; latency assumed."""
CPU_HOST = Fabric(
    name="cpu",
    ranks_per_node=8,
    link_bytes_per_s=1e9,
    network_bytes_per_s=1e9,
    copy_bytes_per_s=5e9,
    round_latency_s=300e-6,
)
"""Gloo over loopback; orders of magnitude, not measured."""
FABRICS = {fabric.name: fabric for fabric in (H200_NODE, CPU_HOST)}


def predict_seconds(plan: ReshardPlan, fabric: Fabric) -> float:
    """Time of one transfer: the slowest rank's local copies, then every round as slow as its busiest port.

    Packing and unpacking run while other rounds are on the wire and are left out; what is aliased needs no copy.
    """
    copies = max((cost.copied_bytes for cost in plan.costs.values()), default=0)
    rounds = sum(_round_seconds(transfers, plan.itemsize, fabric) for transfers in plan.rounds)
    return copies / fabric.copy_bytes_per_s + rounds


def _round_seconds(transfers: Round, itemsize: int, fabric: Fabric) -> float:
    """Sending and receiving are full duplex; NVLink and network ports work side by side."""
    busy: defaultdict[tuple[str, int, bool], int] = defaultdict(int)
    for t in transfers:
        near = fabric.same_node(t.source_rank, t.destination_rank)
        size = t.message.num_elements * itemsize
        busy["send", t.source_rank, near] += size
        busy["receive", t.destination_rank, near] += size
    rates = {True: fabric.link_bytes_per_s, False: fabric.network_bytes_per_s}
    return fabric.round_latency_s + max(size / rates[near] for (_, _, near), size in busy.items())
