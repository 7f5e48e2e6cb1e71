"""Causal attention over packed documents: rotation of queries and keys, then a kernel that keeps documents apart.

Shape suffixes: T packed tokens, D documents, S longest document, N heads, G key/value heads, K head dim, R rotated half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from megatron_rl.models.rotary import packed_rotation
from megatron_rl.ops import rotate
from megatron_rl.types.batches import PackedTokens

FLASH_HEAD_DIM = 256
"""Largest head dim of the flash kernel."""


@dataclass(kw_only=True)
class PackedDocuments(PackedSeqParams):  # type: ignore[misc]
    """Megatron's packed-sequence argument with what our own attention needs, made once per pack."""

    lengths: tuple[int, ...]
    """Tokens of each document, on the host."""
    cos_TR: Tensor
    """f32, cosines of each token's angles."""
    sin_TR: Tensor
    """f32, sines."""


def packed_documents(packed: PackedTokens, frequencies: Tensor, dtype: torch.dtype) -> PackedDocuments:
    """Describe a pack to every layer.

    Args:
        packed: the pack.
        frequencies: f32 ``[R]``, radians per position.
        dtype: of the activations; see ``packed_rotation``.
    """
    cos_TR, sin_TR = packed_rotation(frequencies, packed.cu_seqlens, packed.tokens_T.numel(), dtype)
    return PackedDocuments(
        qkv_format="thd",
        cu_seqlens_q=packed.cu_seqlens,
        cu_seqlens_kv=packed.cu_seqlens,
        max_seqlen_q=packed.max_seqlen,
        max_seqlen_kv=packed.max_seqlen,
        lengths=packed.lengths,
        cos_TR=cos_TR,
        sin_TR=sin_TR,
    )


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


def _runs_flash(q_TNK: Tensor) -> bool:
    half = q_TNK.dtype in (torch.bfloat16, torch.float16)
    return q_TNK.is_cuda and half and q_TNK.shape[-1] <= FLASH_HEAD_DIM and torch.backends.cuda.is_flash_attention_available()


def _flash_attention(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float) -> Tensor:
    """What ``torch.nn.attention.varlen.varlen_attn`` computes, bit for bit, without its Python-level custom operator.

    That costs the host 0.78 ms forward and backward where this costs 0.23 ms, more than a small layer costs the device.
    """
    flash = torch.ops.aten._flash_attention_forward
    attended: Tensor = flash(q, k, v, bounds, bounds, longest, longest, 0.0, True, False, scale=scale)[0]
    return attended


def packed_causal_attention(
    q_TNK: Tensor, k_TGK: Tensor, v_TGK: Tensor, bounds: Tensor, lengths: tuple[int, ...], scale: float
) -> Tensor:
    """Causal attention inside each document of a pack; query head n reads key/value head ``n // (N / G)``.

    On CUDA in half precision this is torch's variable-length flash kernel, where the build has it; elsewhere
    scaled-dot-product attention, on all documents at once where padding them to the longest at most doubles the work, else
    one by one.

    Args:
        q_TNK: queries.
        k_TGK: keys.
        v_TGK: values; may be a view into a fused projection.
        bounds: i32 ``[D + 1]``, document bounds on the tensors' device.
        lengths: the same on the host, as lengths.
        scale: of the dot products.

    Returns ``[T, N, K]``.
    """
    if _runs_flash(q_TNK):
        # A view of the values would keep the whole fused projection alive until the backward pass.
        return _flash_attention(q_TNK, k_TGK, v_TGK.contiguous(), bounds, max(lengths), scale)
    if len(lengths) > 1 and max(lengths) * len(lengths) <= 2 * sum(lengths):
        return _padded_attention(q_TNK, k_TGK, v_TGK, lengths, scale)
    return _document_attention(q_TNK, k_TGK, v_TGK, lengths, scale)


class PackedCausalAttention(torch.nn.Module):
    """Megatron's core-attention slot, for packed documents only; see ``packed_causal_attention``."""

    def __init__(self, *, config: TransformerConfig, softmax_scale: float | None = None, **_: object) -> None:
        """Take the scale; the other arguments belong to Megatron's protocol."""
        super().__init__()
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedDocuments,
        **_: object,
    ) -> Tensor:
        """Attend inside documents; ``[T, N, K]`` in and ``[T, N * K]`` out (this rank's heads)."""
        assert attention_mask is None
        documents = packed_seq_params
        attended = packed_causal_attention(query, key, value, documents.cu_seqlens_q, documents.lengths, self.scale)
        return attended.flatten(1)


class RotaryCoreAttention(torch.nn.Module):
    """Rotates queries and keys in one pass each, then attends.

    Megatron rotates in its own function, in several passes and with a host synchronisation per document; it is given no
    angles.
    """

    def __init__(
        self,
        *,
        attention: Callable[..., torch.nn.Module],
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        cp_comm_type: str | None,
        softmax_scale: float | None,
        pg_collection: ProcessGroupCollection | None,
    ) -> None:
        """Build ``attention``, which takes rotated heads; the other arguments are Megatron's."""
        super().__init__()
        self.attention = attention(
            config=config,
            layer_number=layer_number,
            attn_mask_type=attn_mask_type,
            attention_type=attention_type,
            cp_comm_type=cp_comm_type,
            softmax_scale=softmax_scale,
            pg_collection=pg_collection,
        )

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
        documents = packed_seq_params
        assert isinstance(documents, PackedDocuments), "this attention takes packed documents only"
        assert attention_bias is None
        query = rotate(query, documents.cos_TR, documents.sin_TR)
        key = rotate(key, documents.cos_TR, documents.sin_TR)
        attended: Tensor = self.attention(
            query, key, value, attention_mask, attn_mask_type=attn_mask_type, packed_seq_params=documents
        )
        return attended
