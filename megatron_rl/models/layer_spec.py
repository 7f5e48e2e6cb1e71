"""The parts of a transformer layer, from Transformer Engine or from Megatron-Core and this package.

Both specs store the same parameters: only the norms before the projections have other names under Transformer Engine,
which computes norm and projection in one module (``weights.names.NORMS_INSIDE_LINEARS``).
"""

from __future__ import annotations

from functools import partial

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor

from megatron_rl.models.attention import PackedCausalAttention, RotaryCoreAttention
from megatron_rl.models.stacked_attention import StackedSelfAttention
from megatron_rl.models.transformer_impl import LayerImplementation
from megatron_rl.ops import gated_silu, rms_norm
from megatron_rl.weights.names import NORMS_INSIDE_LINEARS

SHORT_ROW = 256
"""Rows up to this width, heads, are normalised by our kernel: on a GPU four times as fast as torch's, which gives each row a
block. On longer rows ours saves the device a third, but costs the host more than it saves."""


class RMSNorm(torch.nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight``, the mean in f32 (Zhang and Sennrich 2019, eq. 4).

    Under sequence parallelism each rank sees a slice of the tokens, so its weight gradient is a partial sum; the
    ``sequence_parallel`` mark tells Megatron to add them up.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: object) -> None:
        """Make a norm over a last dim of ``hidden_size``."""
        super().__init__()
        self.eps = eps
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dim of ``x``; dtype is kept."""
        if x.is_cuda and x.shape[-1] > SHORT_ROW:
            return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)


class SwiGlu(torch.nn.Module):
    """The gated activation, in Megatron's slot for an activation module (``use_te_activation_func``)."""

    def __init__(self, *, config: TransformerConfig) -> None:
        """Take no parameters; the argument belongs to Megatron's protocol."""
        del config
        super().__init__()

    def forward(self, gate_up: Tensor) -> Tensor:
        """``[..., 2F]`` to ``[..., F]``."""
        return gated_silu(gate_up)


def block_spec(config: TransformerConfig, num_layers: int, implementation: LayerImplementation) -> TransformerBlockSubmodules:
    """Spec of one pipeline chunk: ``num_layers`` equal layers and (on the last chunk) the final norm.

    The one place that names layer parts.
    """
    spec = _transformer_engine if implementation == "transformer_engine" else _local
    return spec(config, num_layers)


def _local(config: TransformerConfig, num_layers: int) -> TransformerBlockSubmodules:
    # Over each head (Qwen3). Its weight is shared by heads that live on different ranks: Megatron adds those gradients up.
    head_norm = RMSNorm if config.qk_layernorm else IdentityOp
    layer = TransformerLayerSubmodules(
        input_layernorm=RMSNorm,
        self_attention=_self_attention(
            SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear,
                core_attention=partial(RotaryCoreAttention, attention=PackedCausalAttention),
                linear_proj=RowParallelLinear,
                q_layernorm=head_norm,
                k_layernorm=head_norm,
            )
        ),
        self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=RMSNorm,
        mlp=_mlp(ColumnParallelLinear, RowParallelLinear),
        mlp_bda=get_bias_dropout_add,
    )
    return _block(layer, num_layers, RMSNorm)


def _transformer_engine(config: TransformerConfig, num_layers: int) -> TransformerBlockSubmodules:
    from megatron.core.extensions.transformer_engine import (
        TEDotProductAttention,
        TELayerNormColumnParallelLinear,
        TENorm,
        TERowParallelLinear,
    )

    head_norm = TENorm if config.qk_layernorm else IdentityOp
    # Transformer Engine's kernels for packed documents take half precision only.
    half = config.params_dtype in (torch.bfloat16, torch.float16)
    layer = TransformerLayerSubmodules(
        self_attention=_self_attention(
            SelfAttentionSubmodules(
                linear_qkv=TELayerNormColumnParallelLinear,
                core_attention=partial(RotaryCoreAttention, attention=TEDotProductAttention if half else PackedCausalAttention),
                linear_proj=TERowParallelLinear,
                q_layernorm=head_norm,
                k_layernorm=head_norm,
            )
        ),
        self_attn_bda=get_bias_dropout_add,
        mlp=_mlp(TELayerNormColumnParallelLinear, TERowParallelLinear),
        mlp_bda=get_bias_dropout_add,
        sharded_state_dict_keys_map=dict(NORMS_INSIDE_LINEARS),
    )
    return _block(layer, num_layers, TENorm)


def accumulate_into_main_grad(chunk: torch.nn.Module) -> None:
    """Let Transformer Engine's weight-gradient products add to the data-parallel wrapper's buffers themselves.

    This is Megatron's ``gradient_accumulation_fusion``; that flag is not set because the output layer, which no forward
    pass here calls, would ask for NVIDIA Apex. Gradients then exist only under the data-parallel wrapper.
    """
    from transformer_engine.pytorch.module.base import TransformerEngineBaseModule

    for module in chunk.modules():
        if isinstance(module, TransformerEngineBaseModule) and hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True


def _self_attention(submodules: SelfAttentionSubmodules) -> ModuleSpec:
    return ModuleSpec(module=StackedSelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=submodules)


def _mlp(linear_fc1: type, linear_fc2: type) -> partial[MLP]:
    submodules = MLPSubmodules(linear_fc1=linear_fc1, linear_fc2=linear_fc2, activation_func=SwiGlu)
    return partial(MLP.as_mlp_submodule, submodules=submodules)


def _block(layer: TransformerLayerSubmodules, num_layers: int, norm: type) -> TransformerBlockSubmodules:
    specs = [ModuleSpec(module=TransformerLayer, submodules=layer)] * num_layers
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm)
