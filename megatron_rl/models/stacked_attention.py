"""Self-attention whose fused projection stores [Q; K; V], the order of the rollout engine, so that both can share it.

Megatron-Core stores the heads of each key/value group together, [q.. k v] after [q.. k v]. The mathematics is the same;
only rows of the weight are permuted. Checkpoints hold Q, K and V apart and load on any tensor-parallel degree.

Shape suffixes: T tokens, F rows of the fused projection on this rank, N query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ReplicaId, ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.attention import SelfAttention
from torch import Tensor


class StackedSelfAttention(SelfAttention):  # type: ignore[misc]
    """Megatron's self-attention; tensor parallelism must divide the key/value heads."""

    @property
    def section_rows(self) -> list[int]:
        """Rows of Q, K and V in this rank's shard of the fused projection."""
        head: int = self.hidden_size_per_attention_head
        key = self.num_query_groups_per_partition * head
        return [self.num_attention_heads_per_partition * head, key, key]

    def get_query_key_value_tensors(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        output_gate: bool = False,
        split_qkv: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``[T, 1, H]`` to query ``[T, 1, N, K]``, key and value ``[T, 1, G, K]``, heads normalised if so set."""
        assert key_value_states is None and not output_gate and split_qkv, "this attention has neither gate nor fused split"
        mixed_T1F, _ = self.linear_qkv(hidden_states)
        sections = torch.split(mixed_T1F, self.section_rows, dim=-1)
        query, key, value = (x.view(*x.shape[:-1], -1, self.hidden_size_per_attention_head) for x in sections)
        if self.q_layernorm is not None:
            query = self.q_layernorm(query)
        if self.k_layernorm is not None:
            key = self.k_layernorm(key)
        return query, key, value

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Megatron's, with each fused tensor as three, cut over the tensor-parallel ranks one by one."""
        shards: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        for name in (f"{prefix}linear_qkv.weight", f"{prefix}linear_qkv.bias"):
            if name in shards:
                shards[name] = _three_tensors(shards[name], self.section_rows, sharded_offsets)
        return shards


def _three_tensors(fused: ShardedTensor, rows: list[int], sharded_offsets: tuple[Any, ...]) -> ShardedTensorFactory:
    """Describe a fused shard as its sections; the optimizer's moments of it are split alike."""
    axis = len(sharded_offsets)
    part = (axis, fused.global_offset[axis] // fused.local_shape[0], fused.axis_fragmentations[axis])

    def split(key: str, tensor: Tensor, replica_id: ReplicaId, flattened_range: slice | None) -> dict[str, ShardedTensor]:
        assert flattened_range is None, "flattened optimizer shards cannot be split; use the fully_reshardable format"
        sections = zip("qkv", torch.split(tensor, rows), strict=True)
        return {
            name: ShardedTensor.from_rank_offsets(
                f"{key}.{name}", section, *sharded_offsets, part, replica_id=replica_id, prepend_axis_num=axis
            )
            for name, section in sections
        }

    def join(sections: dict[str, Tensor]) -> Tensor:
        return torch.cat([sections[name] for name in "qkv"])

    return ShardedTensorFactory(fused.key, fused.data, split, join, fused.replica_id, fused.flattened_range)
