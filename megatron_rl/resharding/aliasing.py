"""Destination parameters that can simply be the source's storage: same rank, same bytes in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import Alias, ReshardPlan


def alias_candidates(plan: ReshardPlan) -> dict[int, tuple[Piece, ...]]:
    """Rank -> local copies that fill a destination parameter in one contiguous run from its first element.

    A piece qualifies where it is the only one its parameter gets, from this rank or another. What it leaves of the
    parameter is padding, which the source must be long enough to cover; the engine's loader checks that.
    """
    senders = _senders(plan)
    return {
        rank: tuple(pieces[0] for name, pieces in _writers(copies).items() if _obstacle(pieces, senders[rank, name]) is None)
        for rank, copies in plan.copies.items()
    }


def with_aliases(plan: ReshardPlan) -> ReshardPlan:
    """The plan with every candidate aliased instead of copied; wants equal dtypes on both sides."""
    aliases, copies, costs = {}, {}, dict(plan.costs)
    for rank, pieces in alias_candidates(plan).items():
        aliases[rank] = {p.destination: Alias(p.source, p.source_offset, p.num_elements) for p in pieces}
        rest = tuple(piece for piece in plan.copies[rank] if piece.destination not in aliases[rank])
        if rest:
            copies[rank] = rest
        saved = sum(piece.num_elements for piece in pieces) * plan.itemsize
        cost = plan.costs[rank]
        costs[rank] = replace(cost, copied_bytes=cost.copied_bytes - saved, aliased_bytes=saved)
    return replace(plan, copies=copies, costs=costs, aliases=aliases)


def alias_report(plan: ReshardPlan, rank: int) -> dict[str, str]:
    """Destination parameter -> why it is written and not aliased on ``rank``."""
    local, senders = _writers(plan.copies.get(rank, ())), _senders(plan)
    names = {*local, *(name for receiver, name in senders if receiver == rank)}
    return {
        name: _obstacle(local.get(name, []), senders[rank, name]) or "weight_sync.alias=false, or the dtypes differ"
        for name in sorted(names)
    }


def summarise_report(report: Mapping[str, str]) -> str:
    """One line per reason: how many parameters, and the first of them."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in report.items():
        names[reason].append(name)
    return "\n".join(f"  {len(of)} not aliased ({of[0]}{', ...' if len(of) > 1 else ''}): {why}" for why, of in names.items())


def _writers(copies: Sequence[Piece]) -> dict[str, list[Piece]]:
    writers: defaultdict[str, list[Piece]] = defaultdict(list)
    for piece in copies:
        writers[piece.destination].append(piece)
    return writers


def _senders(plan: ReshardPlan) -> defaultdict[tuple[int, str], set[int]]:
    """(rank, its destination parameter) -> other ranks that send to it."""
    senders: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for transfer in (t for transfers in plan.rounds for t in transfers):
        for piece in transfer.message.pieces:
            senders[transfer.destination_rank, piece.destination].add(transfer.source_rank)
    return senders


def _obstacle(pieces: list[Piece], senders: set[int]) -> str | None:
    if senders:
        return "parts come from other ranks"
    if len(pieces) > 1:
        return f"made of {len(pieces)} separate runs"
    piece = pieces[0]
    if piece.source_strides != (1,):
        return "the source's elements are strided"
    if piece.destination_strides != (1,) or piece.destination_offset != 0:
        return "the destination is filled in part"
    return None
