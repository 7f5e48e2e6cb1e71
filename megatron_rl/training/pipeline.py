"""Micro-batches through the pipeline stages, forward and backward, and gradients over data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.training.send_recv import MeteredP2P
from megatron_rl.types.batches import PackedTokens

LastStage = Callable[[Tensor, int], tuple[Tensor, dict[str, Tensor]]]
"""(hidden states of the last stage, index of the micro-batch) -> (scalar to differentiate, tensors to keep)."""


def _sum_gradients(model: list[torch.nn.Module], num_tokens: Tensor | None, **kwargs: Any) -> None:
    """Megatron's gradient finalisation without its division: the loss weights hold the denominator."""
    del num_tokens
    finalize_model_grads(model, None, **kwargs)


def _no_sync(chunks: Sequence[torch.nn.Module]) -> Any:
    """What keeps gradients from being reduced before the last micro-batch, in the form Megatron's schedules take it."""
    return chunks[0].no_sync if len(chunks) == 1 else [chunk.no_sync for chunk in chunks]


def run_pipeline(
    chunks: Sequence[torch.nn.Module],
    packs: Sequence[PackedTokens],
    last_stage: LastStage,
    groups: RoleGroups,
    *,
    forward_only: bool,
) -> list[dict[str, Tensor]]:
    """Send packs through all stages, and gradients back unless ``forward_only``.

    Gradients are those of the plain sum of the last stage's scalars over micro-batches and data-parallel ranks.

    Args:
        chunks: this rank's stages (data-parallel wrapped where gradients are wanted).
        packs: micro-batches of this rank's data-parallel share; all ranks have equally many. On an interleaved
            pipeline all have one length.
        last_stage: called on the last stage only, once per micro-batch.
        groups: of the role.
        forward_only: no backward pass.

    Returns what ``last_stage`` kept, per micro-batch; an empty list on other stages.

    Collectives: all ranks of the role.
    """
    layout = groups.layout
    interleaved = layout.virtual_pipeline > 1

    def forward_step(indices: Iterator[int], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        index = next(indices)

        def loss(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            scalar, kept = last_stage(hidden, index)
            return scalar, torch.zeros((), dtype=torch.int, device=scalar.device), kept

        return model(packs[index]), loss

    config: Any = chunks[0].config
    config.finalize_model_grads_func = None if forward_only else _sum_gradients
    config.no_sync_func = None if forward_only else _no_sync(chunks)
    schedule = get_forward_backward_func(pp_size=layout.pipeline, vp_size=layout.virtual_pipeline if interleaved else None)
    communicator = MeteredP2P(pp_group=groups.collection.pp, config=config) if layout.pipeline > 1 else None
    with groups.as_megatron_globals():
        kept: list[dict[str, Tensor]] = schedule(
            forward_step_func=forward_step,
            data_iterator=[iter(range(len(packs))) for _ in chunks],
            model=list(chunks),
            num_microbatches=len(packs),
            # Read by interleaved schedules only, whose packs are equally long; others tell their own length.
            seq_length=packs[0].tokens_T.numel(),
            micro_batch_size=1,
            forward_only=forward_only,
            p2p_communicator=communicator,
            pg_collection=groups.collection,
        )
    return kept
