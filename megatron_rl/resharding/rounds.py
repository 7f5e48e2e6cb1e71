"""Cutting transfers into messages that fit a staging slot, and messages into rounds that fit every rank's slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from megatron_rl.resharding.pieces import Piece, split_head
from megatron_rl.resharding.plan import Message, Round, Transfer

NUM_SLOTS = 2
"""A round is packed while the one before it is on the wire, so each direction owns two slots."""


def slot_elements(budget_bytes: int, itemsize: int) -> int:
    """Elements of one staging slot: the budget holds two slots to send from and two to receive into."""
    elements = budget_bytes // (2 * NUM_SLOTS * itemsize)
    if elements < 1:
        raise ValueError(f"weight_sync.budget_mib is too small: {budget_bytes} bytes hold no element of {itemsize} bytes")
    return elements


def cut_messages(pieces: Iterable[Piece], max_elements: int) -> tuple[Message, ...]:
    """Fill messages up to ``max_elements`` with pieces, in order, cutting a piece at a row where it does not fit."""
    messages: list[Message] = []
    held: list[Piece] = []
    room = max_elements
    waiting = list(pieces)[::-1]
    while waiting:
        piece = waiting.pop()
        if held and room < piece.num_elements // piece.shape[0]:
            messages.append(Message(tuple(held), max_elements - room))
            held, room = [], max_elements
        if piece.num_elements > room:
            piece, *rest = split_head(piece, room)
            waiting += reversed(rest)
        held.append(piece)
        room -= piece.num_elements
    if held:
        messages.append(Message(tuple(held), max_elements - room))
    return tuple(messages)


def schedule_rounds(transfers: Sequence[Transfer], max_elements: int) -> tuple[Round, ...]:
    """Place each transfer in the first round in which its sender's and its receiver's slot have room.

    Order: by distance on the ring of ranks, so that in one round all ranks send to different peers.
    """
    if not transfers:
        return ()
    size = 1 + max(max(t.source_rank, t.destination_rank) for t in transfers)
    ordered = sorted(transfers, key=lambda t: ((t.destination_rank - t.source_rank) % size, t.source_rank))
    sending: defaultdict[int, list[int]] = defaultdict(list)
    receiving: defaultdict[int, list[int]] = defaultdict(list)
    full_until: defaultdict[tuple[str, int], int] = defaultdict(int)
    rounds: list[list[Transfer]] = []
    for transfer in ordered:
        sent, received = sending[transfer.source_rank], receiving[transfer.destination_rank]
        sender, receiver = ("send", transfer.source_rank), ("receive", transfer.destination_rank)
        number = max(full_until[sender], full_until[receiver])
        needed = transfer.message.num_elements
        while _load(sent, number) + needed > max_elements or _load(received, number) + needed > max_elements:
            number += 1
        for loads, who in ((sent, sender), (received, receiver)):
            loads.extend([0] * (number + 1 - len(loads)))
            loads[number] += needed
            while _load(loads, full_until[who]) >= max_elements:
                full_until[who] += 1
        rounds.extend([] for _ in range(number + 1 - len(rounds)))
        rounds[number].append(transfer)
    return tuple(tuple(transfers) for transfers in rounds)


def _load(loads: list[int], number: int) -> int:
    return loads[number] if number < len(loads) else 0
