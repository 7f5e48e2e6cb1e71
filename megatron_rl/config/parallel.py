"""Parallel degrees of one role."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from megatron_rl.config.base import Section


class ParallelConfig(Section):
    """Degrees of one Megatron-Core role. World size = tensor * context * pipeline * data."""

    tensor: PositiveInt = Field(1, description="Tensor-parallel ranks (TP): each weight matrix is cut over them.")
    pipeline: PositiveInt = Field(1, description="Pipeline stages (PP): the layers are cut over them.")
    virtual_pipeline: PositiveInt | None = Field(
        None, description="Model chunks per pipeline stage (VPP, interleaved schedule); null = one chunk."
    )
    data: PositiveInt | None = Field(None, description="Data-parallel replicas (DP); null = world / (TP * PP * CP).")
    context: PositiveInt = Field(1, description="Context-parallel ranks (CP): a sequence is cut over them.")
    expert: PositiveInt = Field(1, description="Expert-parallel ranks (EP) of a mixture-of-experts model.")
    expert_tensor: PositiveInt | None = Field(None, description="Tensor-parallel ranks inside an expert; null = TP.")
    sequence_parallel: bool = Field(
        False, description="Cut activations outside the matrix products over the TP ranks (needs tensor > 1)."
    )
