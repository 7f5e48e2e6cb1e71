"""Which weights of the rollout engine are the actor's own storage, and so cost nothing a second time."""

from __future__ import annotations

from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.parameters import engine_parameters, engine_vocab_size, layer_parts, stage_range
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size


@cache
def engine_own_parameters(model: ModelConfig, train: ParallelLayout, rollout_tensor: int, stage: int) -> int:
    """Weights an engine rank must store beside those it reads in place from the actor's rank on pipeline stage ``stage``.

    What lies on the same rank in one run of equal bytes is shared: at equal TP all of a stage's layers, at other degrees
    the norms, and embedding rows that both sides cut alike. The closed form of ``resharding.aliasing``; a test compares.
    """
    return engine_parameters(model, rollout_tensor) - _shared_parameters(model, train, rollout_tensor, stage)


def _shared_parameters(model: ModelConfig, train: ParallelLayout, rollout_tensor: int, stage: int) -> int:
    if model.moe is not None or model.mla is not None:
        return 0  # their layouts are planned tensor by tensor; nothing is promised here
    parts = [layer_parts(model, layer) for layer in stage_range(model, train, stage)]
    shared = sum(part.replicated for part in parts)
    if train.tensor == rollout_tensor:
        shared += sum(part.cut // train.tensor for part in parts)
    is_first, is_last = stage == 0, stage == train.pipeline - 1
    if is_last:
        shared += model.hidden_size  # the final norm
    copies = int(is_first or is_last) if model.tie_word_embeddings else is_first + is_last
    return shared + copies * _shared_rows(model, train.tensor, rollout_tensor) * model.hidden_size


def _shared_rows(model: ModelConfig, train_tensor: int, rollout_tensor: int) -> int:
    """Vocabulary rows of an engine rank that lie within those of the actor's rank, on every rank."""
    ours, theirs = padded_vocab_size(model.vocab_size, train_tensor), engine_vocab_size(model)
    aligned = train_tensor == 1 or (train_tensor == rollout_tensor and ours == theirs)
    return theirs // rollout_tensor if aligned and train_tensor <= rollout_tensor else 0
