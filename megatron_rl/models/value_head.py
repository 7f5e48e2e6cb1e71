"""The critic's head: one number per token."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel.layers import set_defaults_if_not_set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class ValueHead(torch.nn.Module):
    """``value = hidden @ weight^T``, in f32; the weight is whole on every tensor-parallel rank."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the ``[1, H]`` weight."""
        super().__init__()
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.empty(1, config.hidden_size, dtype=config.params_dtype, device=device))
        set_defaults_if_not_set_tensor_model_parallel_attributes(self.weight)

    def forward(self, hidden_NH: Tensor) -> Tensor:
        """F32 values ``[N]`` of hidden states ``[N, H]``."""
        return torch.nn.functional.linear(hidden_NH.float(), self.weight.float())[:, 0]
