"""Micro-batches through the pipeline stages, and what the last stage makes of the hidden states.

Shape suffixes: T packed tokens, N predicting positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from megatron_rl.models.gpt import TransformerStage
from megatron_rl.ops import VocabShard, token_logprobs
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.types.batches import PackedTokens

LastStage = Callable[[Tensor, int], tuple[Tensor, dict[str, Tensor]]]
"""(hidden states of the last stage, index of the micro-batch) -> (scalar to differentiate, tensors to keep)."""


def vocab_shard(stage: TransformerStage, groups: RoleGroups, vocab_size: int) -> VocabShard:
    """Rows of the LM head this rank holds."""
    assert groups.coordinates is not None
    rows = stage.head_weight().shape[0]
    start = groups.coordinates.tensor * rows
    group = groups.collection.tp if groups.layout.tensor > 1 else None
    return VocabShard(start, start + rows, vocab_size, group)


def _scatter(values_N: Tensor, predicts_T: Tensor) -> Tensor:
    """Put values of predicting positions back into the pack, 0 elsewhere; differentiable."""
    return torch.zeros(predicts_T.shape, dtype=values_N.dtype, device=values_N.device).masked_scatter(predicts_T, values_N)


def lm_outputs(
    stage: TransformerStage,
    hidden: Tensor,
    packed: PackedTokens,
    shard: VocabShard,
    *,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each next token and (if asked) the entropy, f32 ``[T]``, 0 where nothing is predicted.

    Only predicting positions meet the LM head.

    Collectives: the tensor-parallel group.
    """
    group = stage.pg_collection.tp
    hidden_TH = hidden[:, 0]
    if stage.config.sequence_parallel:
        hidden_TH = gather_from_sequence_parallel_region(hidden_TH, tensor_parallel_output_grad=True, group=group)
        hidden_NH = hidden_TH[packed.predicts_T]
    else:
        hidden_NH = copy_to_tensor_model_parallel_region(hidden_TH[packed.predicts_T], group=group)
    logprobs_N, entropy_N = token_logprobs(
        hidden_NH,
        stage.head_weight(),
        packed.targets_T[packed.predicts_T],
        shard,
        temperature=temperature,
        with_entropy=with_entropy,
    )
    entropy_T = None if entropy_N is None else _scatter(entropy_N, packed.predicts_T)
    return _scatter(logprobs_N, packed.predicts_T), entropy_T


def value_outputs(stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> Tensor:
    """Value at each predicting position, f32 ``[T]``, 0 elsewhere.

    Collectives: the tensor-parallel group (under sequence parallelism).
    """
    hidden_TH = hidden[:, 0]
    if stage.config.sequence_parallel:
        # Every rank computes every value from here on, so each already holds the whole gradient of its slice.
        hidden_TH = gather_from_sequence_parallel_region(
            hidden_TH, tensor_parallel_output_grad=False, group=stage.pg_collection.tp
        )
    return _scatter(stage.value_head(hidden_TH[packed.predicts_T]), packed.predicts_T)


def _sum_gradients(model: list[torch.nn.Module], num_tokens: Tensor | None, **kwargs: Any) -> None:
    """Megatron's gradient finalisation without its division: the loss weights hold the denominator."""
    del num_tokens
    finalize_model_grads(model, None, **kwargs)


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

    config = chunks[0].config
    config.finalize_model_grads_func = None if forward_only else _sum_gradients
    schedule = get_forward_backward_func(pp_size=layout.pipeline, vp_size=layout.virtual_pipeline if interleaved else None)
    communicator = P2PCommunicator(pp_group=groups.collection.pp, config=config) if layout.pipeline > 1 else None
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
