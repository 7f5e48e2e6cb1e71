"""The clipped policy loss on tokens: surrogate with dual clip, entropy bonus, KL, and what is logged of them."""

from __future__ import annotations

import torch

from kernels.dispatch import SINGLE, runs_on_triton, unsupported
from kernels.token_loss.inputs import TokenLossInputs, TokenLossRule, TokenLossSums
from kernels.token_loss.reference import token_loss_reference

__all__ = ["TokenLossInputs", "TokenLossRule", "TokenLossSums", "token_loss", "token_loss_reference"]


def token_loss(inputs: TokenLossInputs, rule: TokenLossRule) -> TokenLossSums:
    """``sum_t w_t (c_t L_t - entropy_coeff H_t + kl_coeff KL_t)`` over the mask and its diagnostics, in one pass.

    Equations in reference.py. On CUDA one kernel reads each input once and writes both gradients; the backward pass
    only scales them. Sums add up in a fixed order, so a result is reproducible bit by bit.

    Raises ValueError on CUDA for tensors that are not f32, a mask that is not bool, or unequal shapes.
    """
    tensors = [inputs.logprobs, inputs.old_logprobs, inputs.advantages, inputs.weights]
    tensors += [x for x in (inputs.importance, inputs.ref_logprobs, inputs.entropy) if x is not None]
    if not runs_on_triton("token_loss", SINGLE, *tensors, beside=[inputs.mask]):
        return token_loss_reference(inputs, rule)
    if inputs.mask.dtype != torch.bool:
        raise unsupported("token_loss", f"a mask of {inputs.mask.dtype}, only torch.bool")
    shapes = {tuple(x.shape) for x in (*tensors, inputs.mask)}
    if len(shapes) > 1:
        raise unsupported("token_loss", f"unequal shapes {sorted(shapes)}")
    from kernels.token_loss.triton import token_loss_triton

    return token_loss_triton(inputs, rule)
