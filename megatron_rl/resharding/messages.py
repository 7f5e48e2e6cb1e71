"""The rounds of a plan on one rank: pack, put on the wire, unpack; the next round is packed while one is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import Message, Round
from megatron_rl.resharding.rounds import NUM_SLOTS
from megatron_rl.resharding.transports.wire import Endpoint, Wire
from megatron_rl.resharding.views import Batch, Copies, destination_view, source_view

Pack = Callable[[Sequence[Piece], Sequence[Tensor]], Batch]
"""Prepares the reading of pieces into views of their shape, in the dtype that travels."""


@dataclass(frozen=True, slots=True)
class _LocalRound:
    """This rank's part of a round."""

    pack: Batch
    sends: list[Endpoint]
    receives: list[Endpoint]
    unpack: Batch


class Messages:
    """This rank's staging memory and its views for all rounds."""

    def __init__(self, rounds: Sequence[Round], rank: int, wire: Wire, dtype: torch.dtype) -> None:
        """Allocate staging.

        Args:
            rounds: of the plan, without the transfers that need no wire.
            rank: this one.
            wire: carries them.
            dtype: travels.
        """
        self._transfers, self._rank, self._wire, self._dtype = rounds, rank, wire, dtype
        self._staging = self._allocate()
        self._rounds: list[_LocalRound] = []

    @property
    def staging_bytes(self) -> int:
        """Held for packing and unpacking."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._staging.values())

    def bind(self, sources: Mapping[str, Tensor], destinations: Mapping[str, Tensor], pack: Pack) -> None:
        """Take views of the parameters. What is not packed by ``pack`` travels straight out of them, or into them."""
        self._rounds = []
        for number, transfers in enumerate(self._transfers):
            sends, pieces, _, packed = self._endpoints("send", number, transfers, sources)
            receives, _, parameters, arrived = self._endpoints("receive", number, transfers, destinations)
            unpack = Copies(list(zip(arrived, parameters, strict=True)))
            self._rounds.append(_LocalRound(pack(pieces, packed), sends, receives, unpack))

    def run(self) -> None:
        """Move the current values. Collective over the ranks that share transfers."""
        under_way: tuple[_LocalRound, list[dist.Work]] | None = None
        for current in self._rounds:
            current.pack.run()
            works = self._wire.post(current.sends, current.receives)
            if under_way is not None:
                _finish(*under_way)
            under_way = (current, works)
        if under_way is not None:
            _finish(*under_way)

    def _allocate(self) -> dict[tuple[str, int], Tensor]:
        """Staging memory by direction and slot, as large as this rank's fullest round needs."""
        sizes: dict[tuple[str, int], int] = {}
        for number, transfers in enumerate(self._transfers):
            filled = {"send": 0, "receive": 0}
            for transfer in transfers:
                filled["send"] += transfer.message.num_elements * (transfer.source_rank == self._rank)
                filled["receive"] += transfer.message.num_elements * (transfer.destination_rank == self._rank)
            for way, size in filled.items():
                key = (way, number % NUM_SLOTS)
                sizes[key] = max(sizes.get(key, 0), size)
        return {key: torch.empty(size, dtype=self._dtype, device=self._wire.device) for key, size in sizes.items()}

    def _endpoints(
        self, way: str, number: int, transfers: Round, parameters: Mapping[str, Tensor]
    ) -> tuple[list[Endpoint], list[Piece], list[Tensor], list[Tensor]]:
        """Wire buffers of one direction of a round; the staged pieces, their views of parameters and of the staging memory."""
        endpoints: list[Endpoint] = []
        pieces: list[Piece] = []
        views: list[Tensor] = []
        staged: list[Tensor] = []
        filled = 0
        sending = way == "send"
        take = source_view if sending else destination_view
        for tag, transfer in enumerate(transfers):
            if self._rank != (transfer.source_rank if sending else transfer.destination_rank):
                continue
            message, peer = transfer.message, transfer.destination_rank if sending else transfer.source_rank
            found = [take(parameters, piece) for piece in message.pieces]
            if self._goes_unpacked(found):
                buffer = found[0].view(-1)
            else:
                buffer = self._staging[way, number % NUM_SLOTS][filled : filled + message.num_elements]
                pieces += message.pieces
                views += found
                staged += _unpacked(buffer, message)
                filled += message.num_elements
            endpoints.append(Endpoint(_on_wire(buffer), peer, tag))
        return endpoints, pieces, views, staged

    def _goes_unpacked(self, views: list[Tensor]) -> bool:
        """Whether the parameter itself can be on the wire: the message is one contiguous run of it, in its dtype."""
        if len(views) != 1 or not views[0].is_contiguous():
            return False
        return views[0].dtype == self._dtype and views[0].device == self._wire.device


def _finish(part: _LocalRound, works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
    part.unpack.run()


def _on_wire(buffer: Tensor) -> Tensor:
    """8-bit floats travel as bytes: not every backend knows them."""
    return buffer.view(torch.uint8) if buffer.element_size() == 1 else buffer


def _unpacked(buffer: Tensor, message: Message) -> list[Tensor]:
    """The pieces of a packed message as views of its buffer."""
    pieces = message.pieces
    runs = torch.split(buffer, [piece.num_elements for piece in pieces])
    return [run.view(piece.shape) for run, piece in zip(runs, pieces, strict=True)]
