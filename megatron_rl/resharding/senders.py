"""Which replica sends each message: one on the receiver's node if there is one, and of those the least loaded."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from megatron_rl.resharding.matching import Recipe
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import Message, Transfer
from megatron_rl.resharding.recipes import RankClass
from megatron_rl.resharding.rounds import cut_messages

_Pool = tuple[int, int | None]
"""(source class, node): the replicas a receiver may hear from; node None = all of the class."""


def assign_senders(
    wanted: Sequence[tuple[int, Recipe]], sources: Sequence[RankClass], max_elements: int, ranks_per_node: int | None
) -> list[Transfer]:
    """Cut every list of pieces into messages and choose the sending rank of each.

    Messages of one list are striped over the replicas where these outnumber the receivers.
    """
    senders = _Senders(sources, ranks_per_node)
    pools = [(rank, source, pieces, senders.pool(source, rank)) for rank, r in wanted for source, pieces in r.remote.items()]
    receivers: defaultdict[_Pool, int] = defaultdict(int)
    for _, _, _, pool in pools:
        receivers[pool] += 1
    messages: dict[tuple[int, int], tuple[Message, ...]] = {}
    transfers = []
    for rank, _, pieces, pool in pools:
        stripes = max(1, senders.size(pool) // receivers[pool])
        key = (id(pieces), stripes)
        if key not in messages:
            messages[key] = striped_messages(pieces, stripes, max_elements)
        if stripes == 1:
            sender = senders.least_loaded(pool)
            transfers += [Transfer(sender, rank, message) for message in messages[key]]
            senders.add(sender, sum(message.num_elements for message in messages[key]))
            continue
        for message in messages[key]:
            sender = senders.least_loaded(pool)
            transfers.append(Transfer(sender, rank, message))
            senders.add(sender, message.num_elements)
    return transfers


def striped_messages(pieces: Sequence[Piece], stripes: int, max_elements: int) -> tuple[Message, ...]:
    """At least ``stripes`` messages of about equal size, none above ``max_elements``."""
    total = sum(piece.num_elements for piece in pieces)
    return cut_messages(pieces, min(max_elements, -(-total // stripes)))


class _Senders:
    """Elements each source rank has been given to send, and the least loaded rank of each pool."""

    def __init__(self, sources: Sequence[RankClass], ranks_per_node: int | None) -> None:
        self._ranks_per_node = ranks_per_node
        self._loads = {rank: 0 for cls in sources for rank in cls.ranks}
        self._members: dict[_Pool, list[int]] = defaultdict(list)
        for number, cls in enumerate(sources):
            for rank in cls.ranks:
                self._members[number, None].append(rank)
                if ranks_per_node is not None:
                    self._members[number, rank // ranks_per_node].append(rank)
        self._heaps: dict[_Pool, list[tuple[int, int]]] = {}

    def pool(self, source: int, receiver: int) -> _Pool:
        """The replicas of a source class on the receiver's node, all where the node has none."""
        if self._ranks_per_node is not None and (source, receiver // self._ranks_per_node) in self._members:
            return source, receiver // self._ranks_per_node
        return source, None

    def size(self, pool: _Pool) -> int:
        return len(self._members[pool])

    def least_loaded(self, pool: _Pool) -> int:
        """Rank of a pool with least to send; entries of the heap that other pools have outdated are renewed."""
        if pool not in self._heaps:
            self._heaps[pool] = [(self._loads[rank], rank) for rank in self._members[pool]]
            heapq.heapify(self._heaps[pool])
        heap = self._heaps[pool]
        while heap[0][0] != self._loads[heap[0][1]]:
            rank = heap[0][1]
            heapq.heapreplace(heap, (self._loads[rank], rank))
        return heap[0][1]

    def add(self, rank: int, elements: int) -> None:
        self._loads[rank] += elements
