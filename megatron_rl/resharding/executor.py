"""Carries out a reshard plan on one rank: local copies, then rounds of packed messages between ranks.

Built once, run after every update: views of parameters and staging memory are kept and rebuilt only if a parameter's
storage has moved. Round ``i + 1`` is packed while round ``i`` is on the wire. Aliased parameters need nothing but the
proof that they still share their storage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.ops import prepare_strided_copies
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import Message, ReshardPlan, Round
from megatron_rl.resharding.rounds import NUM_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """What one run moved on this rank. Bytes are of the wire dtype."""

    bytes_received: int
    bytes_sent: int
    bytes_copied: int
    bytes_aliased: int
    bound_ratio: float
    """Bytes received by all ranks over the lower bound of the plan."""
    seconds: float
    rounds: int
    peak_extra_bytes: int
    """Staging memory held by the executor."""


class Copies:
    """Pairs of equally shaped views, copied together in as few launches as the device allows."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Prepare ``(source, destination)`` pairs; their storage must stay where it is."""
        on_gpu = [(s, d) for s, d in pairs if _on_one_gpu(s, d)]
        rest = [(s, d) for s, d in pairs if not _on_one_gpu(s, d)]
        self._sources, self._destinations = [s for s, _ in rest], [d for _, d in rest]
        # One launch, and faster than torch's batched copy also where nothing is strided (benchmarks/reshard.py).
        self._on_gpu = prepare_strided_copies([s for s, _ in on_gpu], [d for _, d in on_gpu]) if on_gpu else None

    def run(self) -> None:
        """Copy the current values."""
        if self._sources:
            torch._foreach_copy_(self._destinations, self._sources)
        if self._on_gpu is not None:
            self._on_gpu.run()


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A contiguous buffer on the wire, the peer's global rank, and the number of the transfer in its round."""

    buffer: Tensor
    peer: int
    tag: int


@dataclass(frozen=True, slots=True)
class _LocalRound:
    """This rank's part of a round: pack, send and receive, unpack."""

    pack: Copies
    sends: list[_Endpoint]
    receives: list[_Endpoint]
    unpack: Copies


class ReshardExecutor:
    """Runs one plan between two sets of parameters of this rank.

    ``sources`` and ``destinations``: local name -> contiguous tensor, under the names of the two layouts. All sources
    share one dtype, all destinations another; the smaller of the two is what travels. ``group`` covers all ranks of the
    plan and decides the device of the wire (NCCL: GPU, gloo: CPU); None only for a plan without transfers.
    Construction is a collective over ``group``: plan hashes, dtypes and parameters are checked once.
    Raises ValueError, on all ranks alike, where ranks hold different plans, where a parameter is missing or too small,
    or where the budget is below the plan's staging.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        rank: int,
        sources: Mapping[str, Tensor],
        destinations: Mapping[str, Tensor],
        group: dist.ProcessGroup | None,
        budget_bytes: int,
    ) -> None:
        self._plan, self._rank, self._group = plan, rank, group
        self._sources, self._destinations = sources, destinations
        self._cost = plan.cost(rank)
        staged = max((cost.staging_bytes for cost in plan.costs.values()), default=0)
        if staged > budget_bytes:
            raise ValueError(f"the plan stages {staged} bytes on one rank, over the budget of {budget_bytes}")
        if group is None and plan.rounds:
            raise ValueError("the plan moves weights between ranks: a process group is needed")
        self._uses_nccl = group is not None and dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._uses_nccl else torch.device("cpu")
        self._dtype = self._agree()
        self._staging = self._allocate()
        self._on_gpu = any(tensor.is_cuda for tensor in (*sources.values(), *destinations.values()))
        self._pointers: list[int] = []
        used = [*plan.pieces_from(rank), *plan.pieces_to(rank)]
        self._moving = [sources[name] for name in sorted({p.source for p in used if p.source in sources})]
        self._moving += [destinations[name] for name in sorted({p.destination for p in used if p.destination in destinations})]
        self._local = Copies([])
        self._rounds: list[_LocalRound] = []

    @torch.no_grad()
    def run(self) -> TransferStats:
        """Move the current values. Collective over the group where the plan has rounds.

        Raises ValueError naming a parameter that should share its storage with the other side and no longer does.
        """
        started = time.perf_counter()
        self._require_aliases()
        self._refresh_views()
        self._local.run()
        on_wire: tuple[_LocalRound, list[dist.Work]] | None = None
        for current in self._rounds:
            current.pack.run()
            works = self._post(current)
            if on_wire is not None:
                _finish(*on_wire)
            on_wire = (current, works)
        if on_wire is not None:
            _finish(*on_wire)
        if self._on_gpu:
            torch.cuda.synchronize()
        return TransferStats(
            bytes_received=self._cost.received_bytes,
            bytes_sent=self._cost.sent_bytes,
            bytes_copied=self._cost.copied_bytes,
            bytes_aliased=self._cost.aliased_bytes,
            bound_ratio=self._plan.bound_ratio,
            seconds=time.perf_counter() - started,
            rounds=len(self._plan.rounds),
            peak_extra_bytes=sum(t.numel() * t.element_size() for t in self._staging.values()),
        )

    def _agree(self) -> torch.dtype:
        """Compare plans and parameters over the group; return the dtype that travels, the smaller of the two sides'."""
        mine = (self._plan.hash, *self._inspect())
        answers = [mine]
        if self._group is not None:
            answers = [mine] * dist.get_world_size(self._group)
            dist.all_gather_object(answers, mine, group=self._group)
        hashes = [plan_hash[:12] for plan_hash, _, _ in answers]
        if len(set(hashes)) > 1:
            raise ValueError(f"ranks made different reshard plans: {hashes}")
        problems = [f"rank {index} of the group: {problem}" for index, (_, _, problem) in enumerate(answers) if problem]
        if problems:
            raise ValueError("; ".join(problems))
        wire = min((d for _, dtypes, _ in answers for d in dtypes), key=lambda dtype: (dtype.itemsize, str(dtype)))
        if wire.itemsize != self._plan.itemsize:
            raise ValueError(f"the plan counts {self._plan.itemsize} bytes per element, but {wire} travels")
        return wire

    def _inspect(self) -> tuple[set[torch.dtype], str | None]:
        """Dtypes of the parameters that this rank's pieces touch, and what is wrong with the first bad one."""
        try:
            self._require_aliases()
            read = {self._source_view(piece).dtype for piece in self._plan.pieces_from(self._rank)}
            written = {self._destination_view(piece).dtype for piece in self._plan.pieces_to(self._rank)}
            read |= {self._sources[alias.source].dtype for alias in self._plan.aliases.get(self._rank, {}).values()}
        except ValueError as problem:
            return set(), str(problem)
        for side, dtypes in (("sources", read), ("destinations", written)):
            if len(dtypes) > 1:
                return set(), f"the {side} have several dtypes, {sorted(map(str, dtypes))}; plan them apart"
        return read | written, None

    def _allocate(self) -> dict[tuple[str, int], Tensor]:
        """Staging memory by direction and slot, as large as this rank's fullest round needs."""
        sizes: dict[tuple[str, int], int] = {}
        for number, transfers in enumerate(self._plan.rounds):
            filled = {"send": 0, "receive": 0}
            for transfer in transfers:
                filled["send"] += transfer.message.num_elements * (transfer.source_rank == self._rank)
                filled["receive"] += transfer.message.num_elements * (transfer.destination_rank == self._rank)
            for way, size in filled.items():
                key = (way, number % NUM_SLOTS)
                sizes[key] = max(sizes.get(key, 0), size)
        return {key: torch.empty(size, dtype=self._dtype, device=self._device) for key, size in sizes.items()}

    def _refresh_views(self) -> None:
        """Rebuild all views where a parameter's storage has moved since the last run (offload, re-allocation)."""
        pointers = [tensor.data_ptr() for tensor in self._moving]
        if pointers == self._pointers:
            return
        self._pointers = pointers
        local = self._plan.copies.get(self._rank, ())
        self._local = Copies([(self._source_view(piece), self._destination_view(piece)) for piece in local])
        self._rounds = [self._local_round(number, transfers) for number, transfers in enumerate(self._plan.rounds)]

    def _local_round(self, number: int, transfers: Round) -> _LocalRound:
        sends, sources, packed = self._endpoints("send", number, transfers)
        receives, destinations, arrived = self._endpoints("receive", number, transfers)
        pack, unpack = zip(sources, packed, strict=True), zip(arrived, destinations, strict=True)
        return _LocalRound(Copies(list(pack)), sends, receives, Copies(list(unpack)))

    def _endpoints(self, way: str, number: int, transfers: Round) -> tuple[list[_Endpoint], list[Tensor], list[Tensor]]:
        """Wire buffers of one direction of a round, and the pairs (parameter view, staging view) behind them."""
        sending = way == "send"
        endpoints: list[_Endpoint] = []
        parameters: list[Tensor] = []
        staged: list[Tensor] = []
        filled = 0
        for tag, transfer in enumerate(transfers):
            if self._rank != (transfer.source_rank if sending else transfer.destination_rank):
                continue
            message, peer = transfer.message, transfer.destination_rank if sending else transfer.source_rank
            views = [self._source_view(p) if sending else self._destination_view(p) for p in message.pieces]
            if self._goes_unpacked(views):
                buffer = views[0].view(-1)
            else:
                buffer = self._staging[way, number % NUM_SLOTS][filled : filled + message.num_elements]
                parameters += views
                staged += _unpacked(buffer, message)
                filled += message.num_elements
            endpoints.append(_Endpoint(buffer, peer, tag))
        return endpoints, parameters, staged

    def _goes_unpacked(self, views: list[Tensor]) -> bool:
        """Whether the parameter itself can be on the wire: the message is one contiguous run of it, in its dtype."""
        first = views[0]
        return len(views) == 1 and first.is_contiguous() and first.dtype == self._dtype and first.device == self._device

    def _require_aliases(self) -> None:
        for name, alias in self._plan.aliases.get(self._rank, {}).items():
            if name not in self._destinations or alias.source not in self._sources:
                raise ValueError(f"the plan aliases {name!r} to {alias.source!r}, which this rank does not have")
            source, destination = self._sources[alias.source], self._destinations[name]
            shared = source.data_ptr() + alias.offset * source.element_size()
            if destination.data_ptr() != shared or destination.dtype != source.dtype:
                raise ValueError(
                    f"{name!r} does not share the storage of {alias.source!r} from element {alias.offset}: one of them has "
                    "moved since the engine was built (offload, re-allocation); set weight_sync.alias=false"
                )

    def _source_view(self, piece: Piece) -> Tensor:
        return _view(self._sources, piece.source, piece.shape, piece.source_strides, piece.source_offset)

    def _destination_view(self, piece: Piece) -> Tensor:
        tensors, name = self._destinations, piece.destination
        return _view(tensors, name, piece.shape, piece.destination_strides, piece.destination_offset)

    def _post(self, part: _LocalRound) -> list[dist.Work]:
        if not part.sends and not part.receives:
            return []
        if self._uses_nccl:
            operations = [dist.P2POp(dist.isend, end.buffer, end.peer, self._group) for end in part.sends]
            operations += [dist.P2POp(dist.irecv, end.buffer, end.peer, self._group) for end in part.receives]
            return list(dist.batch_isend_irecv(operations))
        works = [dist.irecv(end.buffer, end.peer, self._group, end.tag) for end in part.receives]
        works += [dist.isend(end.buffer, end.peer, self._group, end.tag) for end in part.sends]
        return [work for work in works if work is not None]


def aliased_runs(plan: ReshardPlan, rank: int, sources: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Destination parameter -> the flat rest of the source parameter that it is to be a view of, from its first element."""
    aliases = plan.aliases.get(rank, {})
    return {name: sources[alias.source].detach().view(-1)[alias.offset :] for name, alias in aliases.items()}


def _on_one_gpu(source: Tensor, destination: Tensor) -> bool:
    return source.is_cuda and source.device == destination.device


def _finish(part: _LocalRound, works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
    part.unpack.run()


def _unpacked(buffer: Tensor, message: Message) -> list[Tensor]:
    """The pieces of a packed message as views of its buffer."""
    pieces = message.pieces
    runs = torch.split(buffer, [piece.num_elements for piece in pieces])
    return [run.view(piece.shape) for run, piece in zip(runs, pieces, strict=True)]


def _view(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    """Strided view of a parameter; raises ValueError naming it where it is absent, strided or too small."""
    if name not in tensors:
        raise ValueError(f"the plan needs parameter {name!r}, which this rank does not have")
    tensor = tensors[name].detach()
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if not tensor.is_contiguous() or last >= tensor.numel():
        raise ValueError(f"parameter {name!r} {tuple(tensor.shape)} is not contiguous or ends before element {last}")
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)
