"""The parts of a transformer layer: Megatron's parallel linears with our own norm and packed attention.

Shape suffixes: T packed tokens, D documents, S longest document, H hidden, N heads, G key/value heads, K head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor

from megatron_rl.models.stacked_attention import StackedSelfAttention


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
        if x.is_cuda:
            return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        x_f32 = x.float()
        normed = x_f32 * torch.rsqrt(x_f32.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


@dataclass
class PackedDocuments(PackedSeqParams):  # type: ignore[misc]
    """Megatron's packed-sequence argument with what our own attention needs.

    ``cu_seqlens_q`` stays None on purpose: Megatron then rotates all T tokens in one operation with the per-token
    angles it is given, instead of looping over documents with a host sync for each.
    """

    bounds: Tensor | None = None
    """i32 ``[D + 1]``, on the compute device."""
    lengths: tuple[int, ...] = ()
    """The same, as lengths on the host."""
    max_seqlen: int = 0
    """Longest document, tokens."""


def _padded_attention(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """Lay documents side by side, padded on the right: causality alone keeps real queries off the padding."""
    longest = max(lengths)
    lengths_D = torch.tensor(lengths, device=q.device)
    kept_DS = torch.arange(longest, device=q.device) < lengths_D[:, None]

    def unpack(x_TNK: Tensor) -> Tensor:
        padded = x_TNK.new_zeros(len(lengths), longest, *x_TNK.shape[1:])
        return padded.masked_scatter(kept_DS[..., None, None], x_TNK).transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        unpack(q), unpack(k), unpack(v), is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)[kept_DS]


def _document_attention(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """One attention call per document."""
    documents = zip(*(torch.split(x, list(lengths)) for x in (q, k, v)), strict=True)
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(
            a.transpose(0, 1)[None],
            b.transpose(0, 1)[None],
            c.transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )[0].transpose(0, 1)
        for a, b, c in documents
    ]
    return torch.cat(outputs)


def packed_causal_attention(q_TNK: Tensor, k_TGK: Tensor, v_TGK: Tensor, documents: PackedDocuments, scale: float) -> Tensor:
    """Causal attention inside each document of a pack; query head n reads key/value head ``n // (N / G)``.

    On CUDA in half precision this is the variable-length flash kernel; elsewhere scaled-dot-product attention, on all
    documents at once where padding them to the longest at most doubles the work, else one by one.

    Returns ``[T, N, K]``.
    """
    if q_TNK.is_cuda and q_TNK.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        repeats = q_TNK.shape[1] // k_TGK.shape[1]
        k, v = (x.repeat_interleave(repeats, dim=1) if repeats > 1 else x.contiguous() for x in (k_TGK, v_TGK))
        bounds, longest = documents.bounds, documents.max_seqlen
        assert bounds is not None
        attended = varlen_attn(q_TNK.contiguous(), k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0))
        assert isinstance(attended, Tensor)
        return attended
    lengths = documents.lengths
    if len(lengths) > 1 and max(lengths) * len(lengths) <= 2 * sum(lengths):
        return _padded_attention(q_TNK, k_TGK, v_TGK, lengths, scale)
    return _document_attention(q_TNK, k_TGK, v_TGK, lengths, scale)


class PackedCausalAttention(torch.nn.Module):
    """Megatron's core-attention slot, for packed documents only."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: object,
    ) -> None:
        """Take the scale; the other arguments belong to Megatron's protocol."""
        del layer_number, attn_mask_type, attention_type, pg_collection
        super().__init__()
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend inside documents; ``[T, N, K]`` in and ``[T, N * K]`` out (this rank's heads)."""
        assert isinstance(packed_seq_params, PackedDocuments), "this attention takes packed documents only"
        assert attention_mask is None and attention_bias is None
        return packed_causal_attention(query, key, value, packed_seq_params, self.scale).flatten(1)


def block_spec(config: TransformerConfig, num_layers: int) -> TransformerBlockSubmodules:
    """Spec of one pipeline chunk: ``num_layers`` equal layers and (on the last chunk) the final norm.

    The one place that names layer parts; a Transformer Engine spec would be chosen here.
    """
    # Over each head (Qwen3). Its weight is shared by heads that live on different ranks: Megatron adds those gradients up.
    head_norm = RMSNorm if config.qk_layernorm else IdentityOp
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=ModuleSpec(
                module=StackedSelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=PackedCausalAttention,
                    linear_proj=RowParallelLinear,
                    q_layernorm=head_norm,
                    k_layernorm=head_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=get_mlp_module_spec_for_backend(backend=LocalSpecProvider()),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)
