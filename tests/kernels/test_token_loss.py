"""The token loss: value, diagnostics and both gradients against the specification in f64."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from kernels.token_loss import TokenLossInputs, TokenLossRule, TokenLossSums, token_loss, token_loss_reference
from tests.kernels.closeness import assert_close

PLAIN = TokenLossRule(clip_c=None)
RULES = {
    "ppo": PLAIN,
    "dual-clip": TokenLossRule(clip_low=0.1, clip_high=0.3, clip_c=1.5),
    "entropy": TokenLossRule(entropy_coeff=0.3),
    "k1": TokenLossRule(kl_coeff=0.2, kl_kind="k1"),
    "k2": TokenLossRule(kl_coeff=0.2, kl_kind="k2"),
    "k3": TokenLossRule(kl_coeff=0.2, kl_kind="k3"),
    "abs": TokenLossRule(kl_coeff=0.2, kl_kind="abs"),
}


def make_inputs(num_tokens: int, device: torch.device, spread: float = 0.5) -> TokenLossInputs:
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(scale: float) -> Tensor:
        return (torch.randn(num_tokens, generator=generator) * scale).to(device)

    mask = (torch.rand(num_tokens, generator=generator) < 0.8).to(device)
    mask[0] = True
    logprobs = draw(1.0) - 2.0
    inputs = TokenLossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs + draw(spread),
        advantages=draw(1.0),
        weights=draw(0.1).abs() / num_tokens,
        mask=mask,
        importance=draw(1.0).abs(),
        ref_logprobs=logprobs + draw(spread),
        entropy=draw(1.0).abs(),
    )
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if value.is_floating_point():
            value.masked_fill_(~mask, float("nan"))
    return inputs


def with_leaves(inputs: TokenLossInputs, dtype: torch.dtype) -> TokenLossInputs:
    copies = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    cast = {name: x.to(dtype).detach().clone() if x.is_floating_point() else x for name, x in copies.items()}
    cast["logprobs"].requires_grad_(), cast["entropy"].requires_grad_()
    return TokenLossInputs(**cast)


def assert_same_sums(actual: TokenLossSums, expected: TokenLossSums) -> None:
    for field in fields(TokenLossSums):
        torch.testing.assert_close(
            getattr(actual, field.name).double().cpu(),
            getattr(expected, field.name).detach().double().cpu(),
            rtol=2e-5,
            atol=1e-7,
        )


@pytest.mark.parametrize("num_tokens", [1, 63, 3000])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_token_loss_matches_reference(rule: TokenLossRule, num_tokens: int, device: torch.device) -> None:
    from kernels.token_loss.triton import token_loss_triton

    inputs = make_inputs(num_tokens, device)
    mine, exact = with_leaves(inputs, torch.float32), with_leaves(inputs, torch.float64)
    sums, wanted = token_loss_triton(mine, rule), token_loss_reference(exact, rule)
    (3.0 * sums.loss).backward()
    (3.0 * wanted.loss).backward()
    assert_same_sums(sums, wanted)
    assert_close(mine.logprobs.grad, exact.logprobs.grad, torch.float32)
    assert_close(mine.entropy.grad, exact.entropy.grad, torch.float32)
    assert not mine.logprobs.grad[~inputs.mask].any()


def test_token_loss_clamps_far_ratios(device: torch.device) -> None:
    from kernels.token_loss.triton import token_loss_triton

    inputs = make_inputs(64, device, spread=40.0)
    mine, exact = with_leaves(inputs, torch.float32), with_leaves(inputs, torch.float64)
    sums, wanted = token_loss_triton(mine, RULES["k3"]), token_loss_reference(exact, RULES["k3"])
    sums.loss.backward()
    wanted.loss.backward()
    assert_close(sums.loss, wanted.loss, torch.float32)
    assert_close(mine.logprobs.grad, exact.logprobs.grad, torch.float32)


def test_token_loss_without_optional_terms_matches_reference(device: torch.device) -> None:
    from kernels.token_loss.triton import token_loss_triton

    inputs = replace(make_inputs(63, device), importance=None, ref_logprobs=None, entropy=None)
    assert_same_sums(token_loss_triton(inputs, PLAIN), token_loss_reference(inputs, PLAIN))


@pytest.mark.parametrize("num_tokens", [0, 5], ids=["no-tokens", "nothing-counts"])
def test_token_loss_of_nothing_matches_hand_computed(num_tokens: int, device: torch.device) -> None:
    from kernels.token_loss.triton import token_loss_triton

    nothing = torch.full((num_tokens,), float("nan"), device=device)
    leaf = nothing.clone().requires_grad_()
    inputs = TokenLossInputs(
        logprobs=leaf, old_logprobs=nothing, advantages=nothing, weights=nothing, mask=torch.zeros_like(nothing).bool()
    )
    sums = token_loss_triton(inputs, PLAIN)
    sums.loss.backward()
    assert all(getattr(sums, field.name).item() == 0.0 for field in fields(sums))
    assert not leaf.grad.any()


def test_token_loss_matches_hand_computed() -> None:
    """Ratio 2 with A = 1 is clipped at 1.2; ratio 2 with A = -1 is not, until the dual clip at 1.5."""
    two = torch.tensor([2.0, 2.0]).log()
    inputs = TokenLossInputs(
        logprobs=two,
        old_logprobs=torch.zeros(2),
        advantages=torch.tensor([1.0, -1.0]),
        weights=torch.tensor([0.5, 0.25]),
        mask=torch.tensor([True, True]),
    )
    sums = token_loss(inputs, TokenLossRule(clip_c=1.5))
    assert sums.loss.item() == pytest.approx(0.5 * -1.2 + 0.25 * 1.5)
    assert (sums.num_clipped.item(), sums.num_clipped_lower.item()) == (1, 1)
    assert sums.max_ratio_deviation.item() == pytest.approx(1.0)


def test_token_loss_rejects_unknown_estimator() -> None:
    with pytest.raises(ValueError, match="kl_kind='k4'"):
        TokenLossRule(kl_kind="k4")
