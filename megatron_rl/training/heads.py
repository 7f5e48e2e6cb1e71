"""What the last pipeline stage makes of its hidden states: log-probs, values, and their loss.

Only predicting positions meet a head. Shape suffixes: T packed tokens, N predicted tokens, C a slice of them, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from megatron_rl.models.gpt import TransformerStage
from megatron_rl.ops import VocabShard, token_logprobs, token_loss
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.training.loss_closures import LossFunction, PartialMetrics, add_up
from megatron_rl.types.batches import MicroBatch, PackedTokens


def vocab_shard(stage: TransformerStage, groups: RoleGroups, vocab_size: int) -> VocabShard:
    """Rows of the LM head this rank holds."""
    assert groups.coordinates is not None
    rows = stage.head_weight().shape[0]
    start = groups.coordinates.tensor * rows
    group = groups.collection.tp if groups.layout.tensor > 1 else None
    return VocabShard(start, start + rows, vocab_size, group)


def lm_outputs(
    stage: TransformerStage,
    hidden: Tensor,
    packed: PackedTokens,
    shard: VocabShard,
    *,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each predicted token and (if asked) the entropy, f32 ``[N]``.

    Collectives: the tensor-parallel group.
    """
    return token_logprobs(
        _lm_hidden(stage, hidden, packed),
        stage.head_weight(),
        packed.targets_N,
        shard,
        temperature=temperature,
        with_entropy=with_entropy,
    )


@dataclass(frozen=True, slots=True)
class LmLoss:
    """A loss on log-probs, and what it was computed from."""

    total: Tensor
    """f32 scalar with a graph."""
    metrics: PartialMetrics
    logprobs_N: Tensor
    """f32, detached."""
    entropy_N: Tensor | None
    """f32, detached; None unless asked for or needed by the loss."""


def lm_loss(
    stage: TransformerStage,
    hidden: Tensor,
    batch: MicroBatch,
    loss: LossFunction,
    shard: VocabShard,
    *,
    temperature: float,
    with_entropy: bool = False,
) -> LmLoss:
    """Evaluate a loss on log-probs.

    A separable loss is evaluated slice by slice where the logits are, which saves making them again for the gradient.

    Collectives: the tensor-parallel group.
    """
    packed, inputs = batch.packed, batch.loss_inputs
    with_entropy = with_entropy or loss.needs_entropy
    if not loss.is_separable:
        logprobs_N, entropy_N = lm_outputs(stage, hidden, packed, shard, temperature=temperature, with_entropy=with_entropy)
        total, metrics = loss(logprobs_N, entropy_N, inputs)
        return LmLoss(total, metrics, logprobs_N.detach(), None if entropy_N is None else entropy_N.detach())
    parts: list[PartialMetrics] = []
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []

    def slice_loss(cut: slice, logprobs_C: Tensor, entropy_C: Tensor | None) -> Tensor:
        scalar, metrics = loss(logprobs_C, entropy_C, inputs[cut])
        parts.append(metrics)
        logprobs.append(logprobs_C.detach())
        if entropy_C is not None:
            entropies.append(entropy_C.detach())
        return scalar

    total = token_loss(
        _lm_hidden(stage, hidden, packed),
        stage.head_weight(),
        packed.targets_N,
        slice_loss,
        shard,
        temperature=temperature,
        with_entropy=with_entropy,
    )
    return LmLoss(total, add_up(parts), torch.cat(logprobs), torch.cat(entropies) if with_entropy else None)


def value_outputs(stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> Tensor:
    """Value of the state in which each predicted token was chosen, f32 ``[N]``.

    Collectives: the tensor-parallel group (under sequence parallelism).
    """
    hidden_TH = hidden[:, 0]
    if stage.config.sequence_parallel:
        # Every rank computes every value from here on, so each already holds the whole gradient of its slice.
        hidden_TH = gather_from_sequence_parallel_region(
            hidden_TH, tensor_parallel_output_grad=False, group=stage.pg_collection.tp
        )
    values_N: Tensor = stage.value_head(torch.index_select(hidden_TH, 0, packed.predicting_N))
    return values_N


def _lm_hidden(stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> Tensor:
    """Hidden states that meet the LM head, ``[N, H]``, equal on every tensor-parallel rank; their gradients add up."""
    group, hidden_TH = stage.pg_collection.tp, hidden[:, 0]
    if stage.config.sequence_parallel:
        hidden_TH = gather_from_sequence_parallel_region(hidden_TH, tensor_parallel_output_grad=True, group=group)
        return torch.index_select(hidden_TH, 0, packed.predicting_N)
    hidden_NH: Tensor = copy_to_tensor_model_parallel_region(torch.index_select(hidden_TH, 0, packed.predicting_N), group=group)
    return hidden_NH
