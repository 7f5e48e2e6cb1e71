"""The data of one RL step: each stage makes the next type and never adds to an old one.

Shape suffixes: P prompts, B samples, S padded tokens (prompt then response, right-padded), T packed tokens,
N predicted tokens.

Every batch is *global and replicated*: each rank holds all B samples of the step, so baselines, whitening and loss
denominators are computed on the same numbers everywhere and cannot depend on the layout. Roles pick their
data-parallel share themselves.

All ``*_BS`` tensors are in token coordinates: entry ``[b, s]`` speaks of token ``s``, i.e. its log-prob given the
tokens before it, or the value of the state in which it was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

FinishReason = Literal["stop", "length", "abort"]


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise TypeError(f"{name}: expected {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """B = P * n sampled responses; the samples of prompt p are rows ``p*n .. p*n+n-1``."""

    tokens_BS: Tensor
    """i64, prompt + response + right padding. The response ids are the engine's own, never re-tokenised."""
    prompt_lengths_B: Tensor
    """i64, tokens of the prompt."""
    response_lengths_B: Tensor
    """i64, tokens of the response, the final EOS included; 0 for an aborted sample."""
    rollout_logprobs_BS: Tensor
    """f32, the engine's log-prob of each response token under the behaviour policy; 0 elsewhere."""
    group_ids_B: Tensor
    """i64, index of the sample's prompt in the step."""
    finish_reasons: tuple[FinishReason, ...]
    """``length`` = cut by the response budget without EOS."""
    policy_version: int
    """Weight version the engine sampled from."""

    def __post_init__(self) -> None:
        b, s = self.tokens_BS.shape
        _check("tokens_BS", self.tokens_BS, torch.int64, (b, s))
        _check("prompt_lengths_B", self.prompt_lengths_B, torch.int64, (b,))
        _check("response_lengths_B", self.response_lengths_B, torch.int64, (b,))
        _check("rollout_logprobs_BS", self.rollout_logprobs_BS, torch.float32, (b, s))
        _check("group_ids_B", self.group_ids_B, torch.int64, (b,))
        if len(self.finish_reasons) != b:
            raise TypeError(f"finish_reasons: expected {b}, got {len(self.finish_reasons)}")

    @property
    def lengths_B(self) -> Tensor:
        """i64, prompt + response tokens."""
        return self.prompt_lengths_B + self.response_lengths_B


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A scored rollout batch, ready to be cut into mini-batches."""

    rollouts: RolloutBatch
    response_mask_BS: Tensor
    """bool, response tokens of samples that count (masked-out samples are all False)."""
    old_logprobs_BS: Tensor | None
    """f32, the actor's log-probs before the update; None = those of the update's own forward pass."""
    ref_logprobs_BS: Tensor | None
    """f32, the reference's; ``old_logprobs_BS`` where no reference is in use."""
    values_BS: Tensor
    """f32, the critic's values; zeros where there is no critic."""
    rewards_B: Tensor
    """f32, sequence rewards before any KL term."""
    advantages_BS: Tensor
    """f32, zero outside the mask."""
    returns_BS: Tensor
    """f32, the critic's targets, zero outside the mask."""
    importance_weights_BS: Tensor
    """f32, rollout-mismatch weights (ones where correction is off)."""

    def __post_init__(self) -> None:
        shape = tuple(self.rollouts.tokens_BS.shape)
        _check("response_mask_BS", self.response_mask_BS, torch.bool, shape)
        for name in ("old_logprobs_BS", "ref_logprobs_BS", "values_BS", "advantages_BS", "returns_BS", "importance_weights_BS"):
            if (tensor := getattr(self, name)) is not None:
                _check(name, tensor, torch.float32, shape)
        _check("rewards_B", self.rewards_B, torch.float32, shape[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """Samples of one optimizer step. The loss is ``sum(loss_weights_BS * token_loss_BS)`` however it is cut."""

    tokens_BS: Tensor
    """i64, prompt + response + right padding."""
    prompt_lengths_B: Tensor
    """i64."""
    response_lengths_B: Tensor
    """i64."""
    response_mask_BS: Tensor
    """bool, tokens that count."""
    loss_weights_BS: Tensor
    """f32, factor of each token in the loss sum, global denominator included; zero outside the mask."""
    old_logprobs_BS: Tensor | None
    """f32, log-probs before the update; None = those of the update's own forward pass."""
    ref_logprobs_BS: Tensor | None
    """f32, the reference's log-probs; None where no loss term reads them."""
    values_BS: Tensor
    """f32, values before the update."""
    advantages_BS: Tensor
    """f32."""
    returns_BS: Tensor
    """f32."""
    importance_weights_BS: Tensor
    """f32, rollout-mismatch weights."""
    num_response_tokens: int
    """Masked-in tokens over all ranks: the denominator of per-token metrics."""

    @property
    def lengths_B(self) -> Tensor:
        """i64, prompt + response tokens."""
        return self.prompt_lengths_B + self.response_lengths_B


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """Documents laid end to end for one pipeline forward: D documents, T tokens, N of them predict a counted token.

    Example: documents ``[5, 6, 7]`` and ``[8, 9]``, all but their first tokens counted, give ``tokens_T=[5,6,7,8,9]``,
    ``predicting_N=[0,1,3]``, ``targets_N=[6,7,9]``, ``cu_seqlens=[0,3,5]``.
    """

    tokens_T: Tensor
    """i64."""
    predicting_N: Tensor
    """i64, ascending: positions in the pack whose next token is a counted response token."""
    targets_N: Tensor
    """i64, those next tokens."""
    cu_seqlens: Tensor
    """i32 ``[D + 1]``, document bounds."""
    lengths: tuple[int, ...]
    """The same on the host: tokens of each of the D documents."""
    rows: tuple[int, ...]
    """Row of the padded batch each document came from; padding documents are not listed and come last."""

    @property
    def max_seqlen(self) -> int:
        """Longest document, tokens."""
        return max(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What a loss knows of N predicted tokens beside the model's answer; a slice of them is again such a thing."""

    loss_weights_N: Tensor
    """f32, factor of each token in the loss sum of the mini-batch."""
    old_logprobs_N: Tensor | None
    """f32, log-probs before the update; None = the model's present ones."""
    ref_logprobs_N: Tensor | None
    """f32, the reference's; None where no loss term reads them."""
    values_N: Tensor
    """f32, values before the update."""
    advantages_N: Tensor
    """f32."""
    returns_N: Tensor
    """f32."""
    importance_weights_N: Tensor
    """f32, rollout-mismatch weights."""
    samples_N: Tensor
    """i64 in ``[0, num_samples)``, the sample each token belongs to."""
    num_samples: int
    """Samples of the micro-batch."""
    num_response_tokens: int
    """Of the whole mini-batch: the denominator of per-token metrics."""

    def __getitem__(self, cut: slice) -> LossInputs:
        """The tokens of a slice; denominators stay those of the whole."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_N")}
        return replace(self, **{name: tensor[cut] for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A packed slice of a ``MiniBatch``."""

    packed: PackedTokens
    loss_inputs: LossInputs
    """Of the pack's N predicted tokens, in the order of ``packed.predicting_N``."""
