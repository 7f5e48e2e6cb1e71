"""Writes a Hugging Face folder from any layout: the writing rank is just another destination of the planner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.spec import Fragment, LayoutFn, LogicalTensor, RankFragments
from megatron_rl.weights.hf_checkpoint import shard_name, shard_tensors, verify_hf_checkpoint, write_shard, write_sidecars
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights:
    """A model as the ranks of one role hold it."""

    layout: LayoutFn
    ranks: Sequence[int]
    """Global ranks of the role, ascending; the first one writes."""
    parameters: Mapping[str, Tensor]
    """This rank's parameters by local name."""
    group: dist.ProcessGroup | None
    """Covers ``ranks``; None in a single process."""

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.ranks[0] if self.group is None else dist.get_rank()


def export_hf_checkpoint(
    folder: Path,
    model: ModelConfig,
    weights: ShardedWeights,
    *,
    dtype: torch.dtype,
    budget_bytes: int,
    shard_bytes: int = 4 << 30,
    companions: Path | None = None,
    special_token_ids: Mapping[str, int | list[int] | None] | None = None,
) -> None:
    """Write config.json, safetensors shards with index, and tokenizer files to ``folder``, replacing it.

    A collective over the role's group; its first rank writes, holding one shard at a time in host memory.
    ``companions``: folder whose tokenizer files are copied and whose config.json gives the special token ids;
    ``special_token_ids`` (``eos_token_id`` and the like) go before those. The folder appears under its name only
    after its headers were read back and found complete. Raises ValueError otherwise, on all ranks.
    """
    tensors = logical_tensors(model)
    shards = shard_tensors(tensors, dtype.itemsize, shard_bytes)
    config = hf_config(
        model, dtype=str(dtype).removeprefix("torch."), base={**_config_of(companions), **(special_token_ids or {})}
    )
    writer = _FolderWriter(folder, active=weights.rank == weights.ranks[0])
    writer.attempt(writer.start)
    for number, shard in enumerate(shards):
        whole = _collect(shard, weights, dtype, budget_bytes)
        writer.attempt(partial(write_shard, writer.unfinished / shard_name(number, len(shards)), whole))
    writer.attempt(partial(write_sidecars, writer.unfinished, shards, dtype.itemsize, config, companions))
    writer.attempt(partial(verify_hf_checkpoint, writer.unfinished, tensors))
    writer.attempt(writer.publish)
    failure = [writer.failure]
    if weights.group is not None:
        dist.broadcast_object_list(failure, src=weights.ranks[0], group=weights.group)
    if failure[0] is not None:
        raise ValueError(f"export to {folder} failed: {failure[0]}")


def whole_tensors_layout(tensors: Sequence[LogicalTensor], holder: int) -> LayoutFn:
    """A layout in which one rank stores every tensor whole, under its checkpoint name."""
    fragments = tuple(
        Fragment(t.name, tuple(0 for _ in t.shape), t.shape, t.name, 0, torch.empty(t.shape, device="meta").stride())
        for t in tensors
    )
    return lambda rank: fragments if rank == holder else ()


class _FolderWriter:
    """Fills a folder beside its final name, on one rank. The first failure stops the writing, not the collectives."""

    def __init__(self, folder: Path, *, active: bool) -> None:
        self._folder, self._active = folder, active
        self.unfinished = folder.with_name(folder.name + ".partial")
        self.failure: str | None = None

    def attempt(self, action: Callable[[], None]) -> None:
        """Do it, unless this rank does not write or an earlier action failed."""
        if not self._active or self.failure is not None:
            return
        try:
            action()
        except (OSError, ValueError) as failure:
            self.failure = f"{type(failure).__name__}: {failure}"

    def start(self) -> None:
        """Begin with an empty folder."""
        if self.unfinished.exists():
            shutil.rmtree(self.unfinished)
        self.unfinished.mkdir(parents=True)

    def publish(self) -> None:
        """Give the folder its name; an older one is removed only after that."""
        older = self._folder.with_name(self._folder.name + ".old")
        if older.exists():
            shutil.rmtree(older)
        if self._folder.exists():
            self._folder.rename(older)
        self.unfinished.rename(self._folder)
        if older.exists():
            shutil.rmtree(older)


def _collect(
    shard: Sequence[LogicalTensor], weights: ShardedWeights, dtype: torch.dtype, budget_bytes: int
) -> dict[str, Tensor]:
    """Bring the tensors of one shard to the first rank; empty elsewhere. Values travel in the smaller dtype."""
    writer = weights.ranks[0]
    held = next(iter(weights.parameters.values())).dtype
    plan = plan_reshard(
        shard,
        _only(shard, weights.layout),
        weights.ranks,
        whole_tensors_layout(shard, writer),
        [writer],
        itemsize=min(held.itemsize, dtype.itemsize),
        budget_bytes=budget_bytes,
    )
    whole = {t.name: torch.empty(t.shape, dtype=dtype) for t in shard} if weights.rank == writer else {}
    ReshardExecutor(plan, weights.rank, weights.parameters, whole, weights.group, budget_bytes).run()
    return whole


def _only(tensors: Sequence[LogicalTensor], layout: LayoutFn) -> LayoutFn:
    """The part of a layout that concerns some tensors; replicas keep sharing one tuple."""
    names = {tensor.name for tensor in tensors}
    parts: dict[int, tuple[RankFragments, RankFragments]] = {}

    def of_rank(rank: int) -> RankFragments:
        whole = layout(rank)
        if id(whole) not in parts:
            parts[id(whole)] = (whole, tuple(f for f in whole if f.tensor in names))
        return parts[id(whole)][1]

    return of_rank


def _config_of(companions: Path | None) -> dict[str, Any]:
    file = None if companions is None else companions / "config.json"
    if file is None or not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text())
    return content
