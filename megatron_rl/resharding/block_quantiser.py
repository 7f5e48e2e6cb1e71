"""The sender's side of quantised weights: scales of its parameters, and packing that quantises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megatron_rl.config.rollout import FP8_BLOCK
from megatron_rl.ops import BlockScaled, prepare_fp8_copies, prepare_fp8_scales
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.quantisation import SCALE_SUFFIX
from megatron_rl.resharding.views import Batch, source_view

_FP8 = torch.float8_e4m3fn


class BlockQuantiser:
    """Scales of this rank's parameters, f32; 1/4096 of the parameters' bytes in bf16."""

    def __init__(self, plan: ReshardPlan, rank: int, sources: Mapping[str, Tensor]) -> None:
        """Take the parameters that ``rank`` reads for ``plan``, matrices; their scales are not valid before ``refresh``."""
        names = sorted({piece.source for piece in plan.pieces_from(rank)})
        self._weights = {name: _block_scaled(sources[name]) for name in names if name in sources}
        self._device = next((weight.scales.device for weight in self._weights.values()), None)
        self._pointers: list[int] = []
        self._renew: Batch | None = None

    @property
    def scales(self) -> dict[str, Tensor]:
        """Parameter + suffix -> its scales: the sources of the plan of scales."""
        return {name + SCALE_SUFFIX: weight.scales for name, weight in self._weights.items()}

    def refresh(self) -> None:
        """Compute the scales of the current weights."""
        pointers = [weight.weight_NK.data_ptr() for weight in self._weights.values()]
        if self._renew is None or pointers != self._pointers:
            self._renew, self._pointers = prepare_fp8_scales(list(self._weights.values())), pointers
        self._renew.run()

    def pack(self, pieces: Sequence[Piece], targets: Sequence[Tensor]) -> Batch:
        """Prepare the quantisation of pieces into FP8 views of their shape."""
        if any(target.device != self._device for target in targets):
            raise ValueError("weight_sync.transport=gloo does not carry FP8 weights from a GPU; use auto")
        parameters = {name: weight.weight_NK for name, weight in self._weights.items()}
        views = [source_view(parameters, piece) for piece in pieces]
        return prepare_fp8_copies(views, targets, [self._weights[piece.source] for piece in pieces])

    def quantised(self) -> dict[str, Tensor]:
        """All parameters in FP8 with the present scales, in new memory: for verification."""
        values = {name: torch.empty(w.weight_NK.shape, dtype=_FP8, device=w.scales.device) for name, w in self._weights.items()}
        weights = list(self._weights.values())
        prepare_fp8_copies([w.weight_NK for w in weights], list(values.values()), weights).run()
        return values


def _block_scaled(weight: Tensor) -> BlockScaled:
    blocks = [-(-extent // FP8_BLOCK) for extent in weight.shape]
    scales = torch.empty(blocks, dtype=torch.float32, device=weight.device)
    return BlockScaled(weight, scales, torch.empty_like(scales))
