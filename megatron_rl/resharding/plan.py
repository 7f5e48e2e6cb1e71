"""A transfer as data: who copies, who sends what to whom and in which round. Torch-free, hashable, printable as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from megatron_rl.resharding.pieces import Piece


@dataclass(frozen=True, slots=True)
class Message:
    """Pieces that travel together, packed one after the other, each in row-major order."""

    pieces: tuple[Piece, ...]
    num_elements: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message between two different global ranks."""

    source_rank: int
    destination_rank: int
    message: Message


Round = tuple[Transfer, ...]
"""Transfers whose staging memory is in use at the same time."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A destination parameter that is a run of a source parameter of its rank; offsets count elements.

    Example: rows 128.. of a whole embedding serve as the second half's shard: ``Alias("embedding", 128 * 64, 123 * 64)``.
    """

    source: str
    offset: int
    num_elements: int
    """Without the padding that may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCost:
    """What one rank moves, in bytes of the wire dtype."""

    rank: int
    copied_bytes: int
    """Moved between two parameters of this rank."""
    sent_bytes: int
    received_bytes: int
    bound_bytes: int
    """Least that any transfer must bring here: needed minus held by this rank."""
    staging_bytes: int
    """Most extra memory of this rank, over both slots of sending and receiving."""
    aliased_bytes: int = 0
    """Used where they are: one storage for both sides."""


@dataclass(frozen=True)
class ReshardPlan:
    """Everything every rank does, the same on all ranks."""

    itemsize: int
    """Bytes per element on the wire."""
    copies: Mapping[int, tuple[Piece, ...]]
    """Rank -> local copies."""
    rounds: tuple[Round, ...]
    costs: Mapping[int, RankCost]
    """Rank -> bytes, in rank order."""
    aliases: Mapping[int, Mapping[str, Alias]] = field(default_factory=dict)
    """Rank -> destination parameter -> what it is a view of; such parameters are written by nothing else."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every global rank that takes part."""
        return tuple(self.costs)

    @property
    def received_bytes(self) -> int:
        """Over all ranks."""
        return sum(cost.received_bytes for cost in self.costs.values())

    @property
    def copied_bytes(self) -> int:
        """Over all ranks."""
        return sum(cost.copied_bytes for cost in self.costs.values())

    @property
    def aliased_bytes(self) -> int:
        """Over all ranks."""
        return sum(cost.aliased_bytes for cost in self.costs.values())

    @property
    def bound_bytes(self) -> int:
        """Over all ranks."""
        return sum(cost.bound_bytes for cost in self.costs.values())

    @property
    def bound_ratio(self) -> float:
        """Bytes received over the lower bound; 1.0 where neither has any."""
        return self.received_bytes / self.bound_bytes if self.bound_bytes else 1.0

    def cost(self, rank: int) -> RankCost:
        """Bytes of one rank; all zero for a rank outside both layouts."""
        idle = RankCost(rank=rank, copied_bytes=0, sent_bytes=0, received_bytes=0, bound_bytes=0, staging_bytes=0)
        return self.costs.get(rank, idle)

    def pieces_from(self, rank: int) -> Iterator[Piece]:
        """Everything that is read on ``rank``."""
        yield from self.copies.get(rank, ())
        for transfer in (t for transfers in self.rounds for t in transfers if t.source_rank == rank):
            yield from transfer.message.pieces

    def pieces_to(self, rank: int) -> Iterator[Piece]:
        """Everything that is written on ``rank``."""
        yield from self.copies.get(rank, ())
        for transfer in (t for transfers in self.rounds for t in transfers if t.destination_rank == rank):
            yield from transfer.message.pieces

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the whole plan, equal on all ranks that planned the same transfer."""
        digest = hashlib.sha256(f"{self.itemsize}".encode())
        seen: dict[int, bytes] = {}

        def of_pieces(pieces: tuple[Piece, ...]) -> bytes:
            if id(pieces) not in seen:
                seen[id(pieces)] = hashlib.sha256(repr(list(map(_fields, pieces))).encode()).digest()
            return seen[id(pieces)]

        for rank in sorted(self.copies):
            digest.update(f"copies {rank}".encode() + of_pieces(self.copies[rank]))
        for number, transfers in enumerate(self.rounds):
            for transfer in transfers:
                head = f"{number} {transfer.source_rank} {transfer.destination_rank}"
                digest.update(head.encode() + of_pieces(transfer.message.pieces))
        for rank in sorted(self.aliases):
            listed = [(name, a.source, a.offset, a.num_elements) for name, a in sorted(self.aliases[rank].items())]
            digest.update(f"aliases {rank} {listed}".encode())
        return digest.hexdigest()

    def to_json(self) -> str:
        """The plan as text, for golden files and for people; sizes in elements, costs in bytes."""
        costs = [{name: getattr(c, name) for name in c.__slots__} for c in self.costs.values()]
        rounds = [
            [{"from": t.source_rank, "to": t.destination_rank, "pieces": _listed(t.message.pieces)} for t in transfers]
            for transfers in self.rounds
        ]
        copies = {str(rank): _listed(pieces) for rank, pieces in sorted(self.copies.items())}
        aliases = {
            str(rank): [f"{name} = {a.source}[{a.offset}:{a.offset + a.num_elements}]" for name, a in sorted(of_rank.items())]
            for rank, of_rank in sorted(self.aliases.items())
        }
        plan = {"itemsize": self.itemsize, "costs": costs, "aliases": aliases, "copies": copies, "rounds": rounds}
        return json.dumps({**plan, "hash": self.hash}, indent=1)


_fields = attrgetter(*Piece.__slots__)


def _listed(pieces: tuple[Piece, ...]) -> list[str]:
    return [
        f"{list(p.shape)} {p.source}[{p.source_offset}{list(p.source_strides)}]"
        f" -> {p.destination}[{p.destination_offset}{list(p.destination_strides)}]"
        for p in pieces
    ]
