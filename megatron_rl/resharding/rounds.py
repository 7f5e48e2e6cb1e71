"""Cutting transfers into messages that fit a staging slot, and messages into rounds that fit every rank's slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
        elements = piece.num_elements
        if held and room < elements // piece.shape[0]:
            messages.append(Message(tuple(held), max_elements - room))
            held, room = [], max_elements
        if elements > room:
            piece, *rest = split_head(piece, room)
            waiting += reversed(rest)
            elements = piece.num_elements
        held.append(piece)
        room -= elements
    if held:
        messages.append(Message(tuple(held), max_elements - room))
    return tuple(messages)


@dataclass(slots=True)
class Schedule:
    """Rounds, and the elements that each rank sends and receives in each of them."""

    rounds: tuple[Round, ...]
    sent: dict[int, list[int]]
    """Rank -> elements by round; rounds beyond the list are empty."""
    received: dict[int, list[int]]


def schedule_rounds(transfers: Sequence[Transfer], max_elements: int) -> Schedule:
    """Place each transfer in the first round in which its sender's and its receiver's slot have room.

    Order: by distance on the ring of ranks, so that in one round all ranks send to different peers.
    """
    if not transfers:
        return Schedule((), {}, {})
    flows: defaultdict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        flows[transfer.source_rank, transfer.destination_rank].append(transfer)
    size = 1 + max(map(max, flows))
    senders: defaultdict[int, _Slots] = defaultdict(_Slots)
    receivers: defaultdict[int, _Slots] = defaultdict(_Slots)
    rounds: list[list[Transfer]] = []
    for source, destination in sorted(flows, key=lambda pair: ((pair[1] - pair[0]) % size, pair[0])):
        _place(flows[source, destination], senders[source], receivers[destination], rounds, max_elements)
    return Schedule(
        tuple(tuple(transfers) for transfers in rounds),
        {rank: slots.loads for rank, slots in senders.items()},
        {rank: slots.loads for rank, slots in receivers.items()},
    )


@dataclass(slots=True)
class _Slots:
    """How full the slots of one rank and direction are, round by round; rounds beyond the list are empty."""

    loads: list[int] = field(default_factory=list)
    closed: int = 0
    """Bit ``i``: round ``i`` is full. An integer as a set, so that the first open round is one machine operation away."""

    def reach(self, num_rounds: int) -> list[int]:
        """The loads, with room for this many rounds."""
        self.loads.extend([0] * (num_rounds - len(self.loads)))
        return self.loads


def _place(flow: list[Transfer], sender: _Slots, receiver: _Slots, rounds: list[list[Transfer]], max_elements: int) -> None:
    """Put the transfers of one pair of ranks into rounds; written out in one loop, since large plans have millions."""
    sent, received = sender.reach(len(rounds) + 1), receiver.reach(len(rounds) + 1)
    # A slot this full is passed over at once, so that the search stays short however uneven the messages are.
    full = max_elements - max_elements // 16
    for transfer in flow:
        needed = transfer.message.num_elements
        room = max_elements - needed
        open_rounds = ~(sender.closed | receiver.closed)
        while True:
            lowest = open_rounds & -open_rounds
            number = lowest.bit_length() - 1
            if sent[number] <= room and received[number] <= room:
                break
            open_rounds ^= lowest
        if number == len(rounds):
            rounds.append([])
            sender.reach(number + 2)
            receiver.reach(number + 2)
        rounds[number].append(transfer)
        sent[number] += needed
        received[number] += needed
        if sent[number] >= full:
            sender.closed |= lowest
        if received[number] >= full:
            receiver.closed |= lowest
