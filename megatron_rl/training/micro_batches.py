"""A global batch as one rank of a role packs it into micro-batches.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.data.packing import CutRule, Packer, Rows, cut_rows, pack_lengths, packing_metrics
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.types.metrics import Metrics


class Samples(Protocol):
    """What a role needs of a batch to run it; ``RolloutBatch`` and ``MiniBatch`` are such."""

    @property
    def tokens_BS(self) -> Tensor:
        """i64, prompt + response + right padding."""

    @property
    def prompt_lengths_B(self) -> Tensor:
        """i64."""

    @property
    def response_lengths_B(self) -> Tensor:
        """i64."""

    @property
    def lengths_B(self) -> Tensor:
        """i64, prompt + response tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCut:
    """Which rows of a batch lie in which micro-batch; every rank of the role knows all of them."""

    shares: list[list[Rows]]
    """By ``[data rank][micro-batch]``."""
    data_rank: int
    """Of this rank."""
    packer: Packer
    """Over the batch."""

    @property
    def rows(self) -> list[Rows]:
        """Of this rank's micro-batches."""
        return self.shares[self.data_rank]

    def metrics(self) -> Metrics:
        """``packing/...`` and ``balance/...`` of all data-parallel ranks."""
        equal = self.packer.fixed_length is not None
        return packing_metrics(self.shares, self.packer.lengths, self.packer.multiple, equal=equal)


def cut_for_role(
    samples: Samples,
    mask_BS: Tensor,
    *,
    config: TrainedRoleConfig,
    hidden_size: int,
    groups: RoleGroups,
    device: torch.device,
) -> RoleCut:
    """Cut a global batch the same way on every rank of a role.

    Args:
        samples: the batch, on the host.
        mask_BS: bool, tokens to be predicted.
        config: limits of a micro-batch.
        hidden_size: of the model, for balance.
        groups: of the role.
        device: the packs' own.
    """
    assert groups.coordinates is not None
    layout, data_rank = groups.layout, groups.coordinates.data
    lengths = tuple(samples.lengths_B.tolist())
    shares = cut_rows(lengths, _rule(config, hidden_size, layout))
    multiple = layout.tensor if layout.sequence_parallel else 1
    # An interleaved pipeline cannot tell its stages how long each pack is.
    equal = layout.virtual_pipeline > 1
    packer = Packer(
        tokens_BS=samples.tokens_BS,
        mask_BS=mask_BS,
        lengths=lengths,
        multiple=multiple,
        device=device,
        fixed_length=pack_lengths(shares[data_rank], lengths, multiple, equal=True)[0] if equal else None,
    )
    return RoleCut(shares=shares, data_rank=data_rank, packer=packer)


def _rule(config: TrainedRoleConfig, hidden_size: int, layout: ParallelLayout) -> CutRule:
    dynamic = config.use_dynamic_bsz
    return CutRule(
        data=layout.data,
        hidden_size=hidden_size,
        max_tokens=config.ppo_max_token_len_per_gpu if dynamic else None,
        max_sequences=None if dynamic else config.ppo_micro_batch_size_per_gpu or 1,
        count_multiple=layout.pipeline if layout.virtual_pipeline > 1 else 1,
    )
