"""Joining a job whose ranks were started one by one: who does not come is named, with its node."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, TCPStore  # type: ignore[attr-defined]

from megatron_rl.config.rank_contract import NODES

_POLL_S = 0.2
_COMPLETE = "roll_call/complete"


def meet(environ: Mapping[str, str], timeout_s: float) -> TCPStore:
    """Store that all ranks share, hosted by rank 0 at ``MASTER_ADDR:MASTER_PORT``, once every rank has come.

    Raises RuntimeError naming the ranks and nodes that did not come, or the port that is taken.
    """
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    place = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    started = time.monotonic()
    try:
        store = TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=rank == 0,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except (dist.DistNetworkError, dist.DistStoreError) as failure:
        what = "cannot listen on" if rank == 0 else f"cannot reach {rank_and_node(0, environ)} at"
        raise RuntimeError(f"{rank_and_node(rank, environ)} {what} {place}: {str(failure).splitlines()[0]}") from None
    store.set(_here(rank), os.uname().nodename)
    if rank == 0:
        _await_everyone(store, environ, started + timeout_s, timeout_s)
        store.set(_COMPLETE, "yes")
    else:
        store.wait([_COMPLETE], timedelta(seconds=timeout_s + 30))  # longer: rank 0 knows who is missing
    assert world_size >= 1
    return store


def _here(rank: int) -> str:
    return f"roll_call/{rank}"


def _await_everyone(store: TCPStore, environ: Mapping[str, str], deadline: float, timeout_s: float) -> None:
    missing = set(range(int(environ["WORLD_SIZE"])))
    while missing:
        missing = {rank for rank in missing if not store.check([_here(rank)])}
        if missing and time.monotonic() > deadline:
            names = ", ".join(rank_and_node(rank, environ) for rank in sorted(missing)[:8])
            raise RuntimeError(
                f"{len(missing)} of {environ['WORLD_SIZE']} ranks did not come to the rendezvous within {timeout_s:.0f} s "
                f"(launcher.rendezvous_timeout_s): {names}"
            )
        if missing:
            time.sleep(_POLL_S)


def rank_and_node(rank: int, environ: Mapping[str, str]) -> str:
    """``"rank 3 (node2)"``; without the node where the launcher did not tell the names."""
    nodes = [name for name in environ.get(NODES, "").split(",") if name]
    if not nodes:
        return f"rank {rank}"
    return f"rank {rank} ({nodes[rank // (int(environ['WORLD_SIZE']) // len(nodes))]})"


def prove_collectives(device: torch.device, host_group: ProcessGroup, timeout_s: float, environ: Mapping[str, str]) -> None:
    """One all-reduce over all ranks, on the compute device, before weights load.

    Raises RuntimeError naming ranks that do not answer, or that add up wrong. Collectives: the world.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if world_size == 1:
        return
    try:
        dist.monitored_barrier(host_group, timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        total = torch.tensor([float(rank + 1)], device=device)
        work = dist.all_reduce(total, async_op=True)
        assert work is not None, "this rank is in the world"
        work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as failure:
        raise RuntimeError(
            f"{rank_and_node(rank, environ)}: the first all-reduce over {world_size} ranks failed before weights were loaded: "
            f"{str(failure).splitlines()[0]}"
        ) from None
    expected = world_size * (world_size + 1) / 2
    if float(total) != expected:
        raise RuntimeError(f"{rank_and_node(rank, environ)}: an all-reduce gave {float(total):g} instead of {expected:g}")
