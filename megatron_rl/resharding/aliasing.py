"""Which destination parameters could simply be the source's storage: same rank, same bytes in the same order."""

from __future__ import annotations

from collections import Counter, defaultdict

from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import ReshardPlan


def alias_candidates(plan: ReshardPlan) -> dict[int, tuple[Piece, ...]]:
    """Rank -> local copies that fill a destination parameter in one contiguous run from its first element.

    A piece qualifies where it is the only one its parameter gets, from this rank or another. Whether an engine can adopt
    foreign storage, and whether padding rows lie behind both runs, is for the engine's adapter to decide.
    """
    arriving: defaultdict[int, set[str]] = defaultdict(set)
    for transfer in (t for transfers in plan.rounds for t in transfers):
        arriving[transfer.destination_rank].update(piece.destination for piece in transfer.message.pieces)
    return {rank: _candidates(pieces, arriving[rank]) for rank, pieces in plan.copies.items()}


def _candidates(copies: tuple[Piece, ...], arriving: set[str]) -> tuple[Piece, ...]:
    writers = Counter(piece.destination for piece in copies)
    return tuple(
        piece
        for piece in copies
        if writers[piece.destination] == 1
        and piece.destination not in arriving
        and piece.destination_offset == 0
        and piece.source_strides == piece.destination_strides == (1,)
    )
