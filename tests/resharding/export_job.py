"""What each rank of the export test does; without transformers, whose import takes seconds per rank."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.resharding.hf_export import ShardedWeights, export_hf_checkpoint
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.verify import allocate_buffers
from megatron_rl.weights.hf_checkpoint import load_hf_checkpoint
from megatron_rl.weights.hf_config import model_config_from_hf
from megatron_rl.weights.names import logical_tensors


def load_and_export(layout: ParallelLayout, base: Path, out: Path) -> None:
    """Read the checkpoint ``base`` into this rank's share of a layout and write it to ``out`` in 10 kB shards."""
    group = dist.group.WORLD if dist.is_initialized() else None
    model, rank = model_config_from_hf(base), dist.get_rank() if group else 0
    stored = megatron_layout(model, layout, padded_vocab_size(model.vocab_size, layout.tensor))
    parameters = allocate_buffers(stored(rank), torch.float32, float("nan"))
    load_hf_checkpoint(base, logical_tensors(model), stored(rank), parameters)
    weights = ShardedWeights(layout=stored, ranks=layout.ranks, parameters=parameters, group=group)
    export_hf_checkpoint(out, model, weights, dtype=torch.float32, budget_bytes=1 << 14, shard_bytes=10_000, companions=base)
