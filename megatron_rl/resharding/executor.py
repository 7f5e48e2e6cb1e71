"""Carries out a reshard plan on one rank: local copies, reads of other processes' memory, rounds of packed messages.

Built once, run after every update: views of parameters and staging memory are kept and rebuilt only if a parameter's
storage has moved. Aliased parameters need nothing but the proof that they still share their storage.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.parallel.gather import gather_objects
from megatron_rl.resharding.block_quantiser import BlockQuantiser
from megatron_rl.resharding.messages import Messages
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import ReshardPlan, Round
from megatron_rl.resharding.transports import ipc
from megatron_rl.resharding.transports.selection import Place, TransportName, choose_wire, ipc_pairs
from megatron_rl.resharding.transports.wire import open_wire
from megatron_rl.resharding.views import Batch, Copies, destination_view, source_view


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a rank tells the others when the executor is built."""

    plan_hash: str
    dtypes: frozenset[torch.dtype]
    """Of the parameters that its pieces touch."""
    problem: str | None
    place: Place | None
    """None where no transfer crosses ranks."""


class ReshardExecutor:
    """Runs one plan between two sets of parameters of this rank.

    ``sources`` and ``destinations``: local name -> contiguous tensor, under the names of the two layouts. All sources
    share one dtype, all destinations another; the smaller of the two is what travels. ``group`` covers all ranks of the
    plan; None only for a plan without transfers. ``transport`` says how weights cross between ranks, see ``selection.py``;
    with a ``quantiser`` the sender quantises what it packs, and nothing is read out of another process's memory.
    Construction is a collective over ``group``: plan hashes, dtypes and parameters are checked once.
    Raises ValueError, on all ranks alike, where ranks hold different plans, where a parameter is missing or too small,
    where the budget is below the plan's staging, or where the transport asked for does not exist.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        rank: int,
        sources: Mapping[str, Tensor],
        destinations: Mapping[str, Tensor],
        group: dist.ProcessGroup | None,
        budget_bytes: int,
        *,
        transport: TransportName = "auto",
        quantiser: BlockQuantiser | None = None,
    ) -> None:
        self._plan, self._rank, self._group, self._quantiser = plan, rank, group, quantiser
        self._sources, self._destinations = sources, destinations
        self._cost = plan.cost(rank)
        staged = max((cost.staging_bytes for cost in plan.costs.values()), default=0)
        if staged > budget_bytes:
            raise ValueError(f"the plan stages {staged} bytes on one rank, over the budget of {budget_bytes}")
        if group is None and plan.rounds:
            raise ValueError("the plan moves weights between ranks: a process group is needed")
        self._on_gpu = any(tensor.is_cuda for tensor in (*sources.values(), *destinations.values()))
        self._dtype, places = self._agree()
        self._pairs, self._reasons = self._choose(transport, places)
        self._messages = self._open_messages(transport, places)
        used = [*plan.pieces_from(rank), *plan.pieces_to(rank)]
        self._moving = [sources[name] for name in sorted({p.source for p in used if p.source in sources})]
        self._moving += [destinations[name] for name in sorted({p.destination for p in used if p.destination in destinations})]
        self._pointers: list[int] = []
        self._local: Batch = Copies([])
        self._pulls: Batch = Copies([])
        self._moved_since_shared = True

    @property
    def transport_summary(self) -> str:
        """One line for people: how many pairs of ranks exchange weights in which way, and why; empty where none does."""
        shared = [f"{len(self._pairs)} through shared GPU memory"] if self._pairs else []
        sent = [f"{count} by messages ({why})" for why, count in Counter(self._reasons.values()).items()]
        return f"weight sync, pairs of ranks: {', '.join(shared + sent)}" if shared or sent else ""

    @torch.no_grad()
    def run(self) -> TransferStats:
        """Move the current values. Collective over the group where the plan has rounds.

        Raises ValueError naming a parameter that should share its storage with the other side and no longer does.
        """
        started = time.perf_counter()
        self._require_aliases()
        if self._quantiser is not None:
            self._quantiser.refresh()
        self._refresh_views()
        if self._pairs:
            self._read_peers()
        self._local.run()
        if self._messages is not None:
            self._messages.run()
        if self._on_gpu:
            torch.cuda.synchronize()
        if self._pairs:
            assert self._group is not None
            ipc.fence(self._group, False)
        return TransferStats(
            bytes_received=self._cost.received_bytes,
            bytes_sent=self._cost.sent_bytes,
            bytes_copied=self._cost.copied_bytes,
            bytes_aliased=self._cost.aliased_bytes,
            bound_ratio=self._plan.bound_ratio,
            seconds=time.perf_counter() - started,
            rounds=len(self._plan.rounds),
            peak_extra_bytes=0 if self._messages is None else self._messages.staging_bytes,
        )

    def _agree(self) -> tuple[torch.dtype, dict[int, Place]]:
        """Compare plans and parameters over the group; the dtype that travels (the smaller of the sides') and all places."""
        mine = self._inspect()
        answers = [mine] if self._group is None else list(gather_objects(mine, self._group).values())
        hashes = [answer.plan_hash[:12] for answer in answers]
        if len(set(hashes)) > 1:
            raise ValueError(f"ranks made different reshard plans: {hashes}")
        problems = [f"rank {index} of the group: {a.problem}" for index, a in enumerate(answers) if a.problem]
        if problems:
            raise ValueError("; ".join(problems))
        wire = min((d for answer in answers for d in answer.dtypes), key=lambda dtype: (dtype.itemsize, str(dtype)))
        if wire.itemsize != self._plan.itemsize:
            raise ValueError(f"the plan counts {self._plan.itemsize} bytes per element, but {wire} travels")
        ranks = [self._rank] if self._group is None else dist.get_process_group_ranks(self._group)
        return wire, {rank: a.place for rank, a in zip(ranks, answers, strict=True) if a.place is not None}

    def _inspect(self) -> _Answer:
        """What this rank knows: the dtypes its pieces touch, and what is wrong with the first bad one."""
        problem, dtypes = None, frozenset[torch.dtype]()
        try:
            dtypes = self._dtypes()
        except ValueError as error:
            problem = str(error)
        place = None
        if self._group is not None and self._plan.rounds:
            device = next((t.device for t in (*self._sources.values(), *self._destinations.values())), torch.device("cpu"))
            read = {piece.source: self._sources[piece.source] for piece in self._sent_pieces() if piece.source in self._sources}
            place = ipc.place_of(read, device, self._group)
        return _Answer(plan_hash=self._plan.hash, dtypes=dtypes, problem=problem, place=place)

    def _dtypes(self) -> frozenset[torch.dtype]:
        self._require_aliases()
        read = {source_view(self._sources, piece).dtype for piece in self._plan.pieces_from(self._rank)}
        written = {destination_view(self._destinations, piece).dtype for piece in self._plan.pieces_to(self._rank)}
        read |= {self._sources[alias.source].dtype for alias in self._plan.aliases.get(self._rank, {}).values()}
        for side, dtypes in (("sources", read), ("destinations", written)):
            if len(dtypes) > 1:
                raise ValueError(f"the {side} have several dtypes, {sorted(map(str, dtypes))}; plan them apart")
        return frozenset(read | written)

    def _choose(
        self, transport: TransportName, places: Mapping[int, Place]
    ) -> tuple[frozenset[tuple[int, int]], dict[tuple[int, int], str]]:
        """Pairs of ranks, of the whole plan, that share memory; and why the others do not."""
        if not places:
            return frozenset(), {}
        pairs = {(t.source_rank, t.destination_rank) for transfers in self._plan.rounds for t in transfers}
        if self._quantiser is not None:
            return frozenset(), dict.fromkeys(sorted(pairs), "quantised by the sender")
        return ipc_pairs(transport, places, pairs)

    def _open_messages(self, transport: TransportName, places: Mapping[int, Place]) -> Messages | None:
        left = [self._without_shared(transfers) for transfers in self._plan.rounds]
        rounds = [transfers for transfers in left if transfers]
        if not rounds:
            return None
        assert self._group is not None
        return Messages(rounds, self._rank, open_wire(choose_wire(transport, places), self._group), self._dtype)

    def _without_shared(self, transfers: Round) -> Round:
        return tuple(t for t in transfers if (t.source_rank, t.destination_rank) not in self._pairs)

    def _sent_pieces(self) -> Iterator[Piece]:
        for transfer in (t for transfers in self._plan.rounds for t in transfers if t.source_rank == self._rank):
            yield from transfer.message.pieces

    def _shared_sources(self) -> dict[str, Tensor]:
        """Parameters of this rank that other processes read where they are."""
        if all(source != self._rank for source, _ in self._pairs):
            return {}
        return {piece.source: self._sources[piece.source] for piece in self._sent_pieces()}

    def _refresh_views(self) -> None:
        """Rebuild all views where a parameter's storage has moved since the last run (offload, re-allocation)."""
        pointers = [tensor.data_ptr() for tensor in self._moving]
        if pointers == self._pointers:
            return
        self._pointers = pointers
        local = self._plan.copies.get(self._rank, ())
        self._local = self._pack(local, [destination_view(self._destinations, piece) for piece in local])
        if self._messages is not None:
            self._messages.bind(self._sources, self._destinations, self._pack)
        self._moved_since_shared = True

    def _pack(self, pieces: Sequence[Piece], targets: Sequence[Tensor]) -> Batch:
        if self._quantiser is not None:
            return self._quantiser.pack(pieces, targets)
        return Copies([(source_view(self._sources, piece), target) for piece, target in zip(pieces, targets, strict=True)])

    def _read_peers(self) -> None:
        """Copy out of other processes' parameters, once all ranks have theirs ready. A collective over the group."""
        assert self._group is not None
        if ipc.fence(self._group, self._moved_since_shared):
            self._open_peers(self._group)
            self._moved_since_shared = False
        self._pulls.run()

    def _open_peers(self, group: dist.ProcessGroup) -> None:
        """Exchange handles and take views of what this rank reads."""
        read_by_others = self._shared_sources()
        mine = ipc.share(read_by_others) if read_by_others else None
        by_rank = gather_objects(mine, group)
        pairs: list[tuple[Tensor, Tensor]] = []
        for source_rank in sorted(source for source, destination in self._pairs if destination == self._rank):
            memory = by_rank[source_rank]
            assert memory is not None, "both sides choose alike"
            parameters = ipc.open_shared(memory)
            for piece in self._pieces_between(source_rank):
                pairs.append((source_view(parameters, piece), destination_view(self._destinations, piece)))
        self._pulls = Copies(pairs)

    def _pieces_between(self, source_rank: int) -> Iterator[Piece]:
        for transfer in (t for transfers in self._plan.rounds for t in transfers):
            if (transfer.source_rank, transfer.destination_rank) == (source_rank, self._rank):
                yield from transfer.message.pieces

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


def aliased_runs(plan: ReshardPlan, rank: int, sources: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Destination parameter -> the flat rest of the source parameter that it is to be a view of, from its first element."""
    aliases = plan.aliases.get(rank, {})
    return {name: sources[alias.source].detach().view(-1)[alias.offset :] for name, alias in aliases.items()}
