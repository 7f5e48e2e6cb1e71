"""LM-head log-probability: forward and every gradient against the specification in f64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.linear_logprob import linear_logprob, linear_logprob_reference, linear_token_loss
from kernels.linear_logprob.stats import join
from tests.kernels.closeness import assert_close

SINGLE, HALF = torch.float32, torch.bfloat16
TEMPERATURE = 0.7


@dataclass
class Case:
    """Inputs of one comparison; leaves collect gradients."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    upstream: Tensor

    def double(self) -> Case:
        return Case(
            self.hidden.detach().double().requires_grad_(),
            self.weight.detach().double().requires_grad_(),
            self.targets,
            self.upstream.double(),
        )

    def loss(self, tokens: slice, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        total = (logprobs * self.upstream[0, tokens]).sum()
        return total if entropy is None else total + (entropy * self.upstream[1, tokens]).sum()


def make_case(positions: int, vocab: int, hidden: int, dtype: torch.dtype, device: torch.device) -> Case:
    generator = torch.Generator().manual_seed(positions + vocab)
    case = Case(
        torch.randn(positions, hidden, generator=generator).to(device, dtype),
        torch.randn(vocab, hidden, generator=generator).to(device, dtype),
        torch.randint(vocab, (positions,), generator=generator).to(device),
        torch.randn(2, positions, generator=generator).to(device),
    )
    case.targets[0] = vocab - 1
    case.hidden.requires_grad_(), case.weight.requires_grad_()
    return case


def reference(case: Case, with_entropy: bool) -> tuple[Case, Tensor, Tensor, Tensor]:
    exact = case.double()
    logprobs, entropy = linear_logprob_reference(exact.hidden, exact.weight, exact.targets, TEMPERATURE)
    loss = exact.loss(slice(None), logprobs, entropy if with_entropy else None)
    loss.backward()
    return exact, logprobs, entropy, loss


CASES = [
    pytest.param(1, 63, 16, 64, SINGLE, id="1x63"),
    pytest.param(63, 60, 24, 64, HALF, id="63x60-bf16"),
    pytest.param(5, 1000, 16, 256, SINGLE, id="5x1000"),
    pytest.param(5, 1000, 16, 256, HALF, id="5x1000-bf16"),
]


@pytest.mark.parametrize("with_entropy", [False, True], ids=["logprobs", "entropy"])
@pytest.mark.parametrize(("positions", "vocab", "hidden", "rows", "dtype"), CASES)
def test_linear_logprob_matches_reference(
    positions: int, vocab: int, hidden: int, rows: int, dtype: torch.dtype, with_entropy: bool, device: torch.device
) -> None:
    from kernels.linear_logprob.recompute import linear_logprob_triton
    from kernels.linear_logprob.tiles import Tiling

    case = make_case(positions, vocab, hidden, dtype, device)
    exact, wanted_logprobs, wanted_entropy, _ = reference(case, with_entropy)
    logprobs, entropy = linear_logprob_triton(
        case.hidden,
        case.weight,
        case.targets,
        temperature=TEMPERATURE,
        with_entropy=with_entropy,
        group=None,
        tiling=Tiling(40, rows),
    )
    case.loss(slice(None), logprobs, entropy).backward()
    assert_close(logprobs, wanted_logprobs, SINGLE)
    if entropy is not None:
        assert_close(entropy, wanted_entropy, SINGLE)
    assert_close(case.hidden.grad, exact.hidden.grad, dtype)
    assert_close(case.weight.grad, exact.weight.grad, dtype)


@pytest.mark.parametrize("with_entropy", [False, True], ids=["logprobs", "entropy"])
@pytest.mark.parametrize(("positions", "vocab", "hidden", "rows", "dtype"), CASES)
def test_linear_token_loss_matches_reference(
    positions: int, vocab: int, hidden: int, rows: int, dtype: torch.dtype, with_entropy: bool, device: torch.device
) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.tiles import Tiling

    case = make_case(positions, vocab, hidden, dtype, device)
    exact, _, _, wanted = reference(case, with_entropy)
    loss = linear_token_loss_triton(
        case.hidden,
        case.weight,
        case.targets,
        differentiated(case.loss),
        temperature=TEMPERATURE,
        with_entropy=with_entropy,
        group=None,
        tiling=Tiling(40, rows),
    )
    (2.0 * loss).backward()
    assert_close(loss, wanted, SINGLE)
    assert_close(case.hidden.grad, 2.0 * exact.hidden.grad, dtype)
    assert_close(case.weight.grad, 2.0 * exact.weight.grad, dtype)


def test_linear_token_loss_with_half_logits_matches_reference(device: torch.device) -> None:
    """Values and gradients are those of logits rounded to bf16, the statistics f32."""
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.tiles import Tiling

    case = make_case(7, 100, 16, HALF, device)
    exact, _, _, wanted = reference(case, with_entropy=True)
    loss = linear_token_loss_triton(
        case.hidden,
        case.weight,
        case.targets,
        differentiated(case.loss),
        temperature=TEMPERATURE,
        with_entropy=True,
        group=None,
        tiling=Tiling(4, 64),
        half_logits=True,
    )
    loss.backward()
    assert_close(loss, wanted, HALF)
    assert_close(case.hidden.grad, exact.hidden.grad, torch.bfloat16)
    assert_close(case.weight.grad, exact.weight.grad, torch.bfloat16)


def test_linear_token_loss_may_leave_the_entropy_out_of_its_value(device: torch.device) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton

    case = make_case(5, 60, 16, SINGLE, device)
    exact, _, wanted_entropy, wanted = reference(case, with_entropy=False)
    seen = []

    def token_loss(cut: slice, logprobs: torch.Tensor, entropy: torch.Tensor | None) -> torch.Tensor:
        seen.append(entropy)
        return case.loss(cut, logprobs, None)

    loss = linear_token_loss_triton(
        case.hidden,
        case.weight,
        case.targets,
        differentiated(token_loss),
        temperature=TEMPERATURE,
        with_entropy=True,
        group=None,
    )
    loss.backward()
    assert_close(loss, wanted, SINGLE)
    assert_close(seen[0], wanted_entropy, SINGLE)
    assert_close(case.hidden.grad, exact.hidden.grad, SINGLE)
    assert_close(case.weight.grad, exact.weight.grad, SINGLE)


def test_linear_token_loss_gives_gradients_once(device: torch.device) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton

    case = make_case(1, 6, 4, SINGLE, device)
    loss = linear_token_loss_triton(
        case.hidden, case.weight, case.targets, differentiated(case.loss), temperature=1.0, with_entropy=False, group=None
    )
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_linear_logprob_with_frozen_weight_matches_reference(device: torch.device) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.recompute import linear_logprob_triton

    case = make_case(5, 60, 16, SINGLE, device)
    exact, *_ = reference(case, with_entropy=False)
    frozen, arguments = case.weight.detach(), {"temperature": TEMPERATURE, "with_entropy": False, "group": None}
    logprobs, _ = linear_logprob_triton(case.hidden, frozen, case.targets, **arguments)
    loss = linear_token_loss_triton(case.hidden, frozen, case.targets, differentiated(case.loss), **arguments)
    (case.loss(slice(None), logprobs, None) + loss).backward()
    assert_close(case.hidden.grad, 2.0 * exact.hidden.grad, SINGLE)


def test_row_stats_invariant_to_tp(device: torch.device) -> None:
    """Three ranks with 40, 20 and 0 rows, joined without a process group."""
    from kernels.linear_logprob.recompute import gradients, row_stats
    from kernels.linear_logprob.tiles import Tiling

    case = make_case(7, 60, 16, SINGLE, device)
    exact, wanted_logprobs, wanted_entropy, _ = reference(case, with_entropy=True)
    shards = [slice(0, 40), slice(40, 60), slice(60, 60)]
    with torch.no_grad():
        targets = [case.targets - shard.start for shard in shards]
        weights = [case.weight[shard] for shard in shards]
        tiling = Tiling(7, 32)
        parts = [row_stats(case.hidden, w, t, TEMPERATURE, True, tiling) for w, t in zip(weights, targets, strict=True)]
        joined = join(torch.stack(parts))
        grads = [
            gradients(case.hidden, w, t, joined, case.upstream[0], case.upstream[1], TEMPERATURE, 32)
            for w, t in zip(weights, targets, strict=True)
        ]
    assert_close(joined.logprobs_N, wanted_logprobs, SINGLE)
    assert_close(joined.entropy_N, wanted_entropy, SINGLE)
    assert_close(sum(hidden for hidden, _ in grads), exact.hidden.grad, SINGLE)
    assert_close(torch.cat([weight for _, weight in grads]), exact.weight.grad, SINGLE)


def test_linear_logprob_survives_large_logits(device: torch.device) -> None:
    from kernels.linear_logprob.recompute import linear_logprob_triton

    hidden = torch.tensor([[1000.0, 0.0]], device=device, requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], device=device)
    logprobs, entropy = linear_logprob_triton(
        hidden, weight, torch.tensor([0], device=device), temperature=1.0, with_entropy=True, group=None
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.item() == entropy.item() == 0.0
    assert torch.isfinite(hidden.grad).all()


def test_linear_logprob_without_positions_matches_hand_computed(device: torch.device) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.recompute import linear_logprob_triton

    hidden = torch.zeros(0, 4, device=device, requires_grad=True)
    weight = torch.ones(6, 4, device=device, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.int64, device=device)
    logprobs, _ = linear_logprob_triton(hidden, weight, targets, temperature=1.0, with_entropy=False, group=None)
    loss = linear_token_loss_triton(
        hidden, weight, targets, differentiated(lambda _, x, __: x.sum()), temperature=1.0, with_entropy=False, group=None
    )
    (logprobs.sum() + loss).backward()
    assert loss.item() == 0.0
    assert not weight.grad.any()


def test_differentiate_tile_addresses_beyond_32_bits(device: torch.device) -> None:
    """Rows two billion elements apart, in memory that is reserved but hardly touched."""
    from kernels.linear_logprob.triton import differentiate_tile

    far = torch.empty_strided((2, 8), (2**31, 1), dtype=torch.bfloat16, device=device)
    near = torch.zeros(2, dtype=torch.float32, device=device)
    targets = torch.tensor([3, 4], device=device)
    logits = torch.full((2, 8), -2.0, device=device)
    differentiate_tile(logits, far, targets, near, near, near + 1.0, None, first_row=0, temperature=1.0)
    wanted = torch.nn.functional.one_hot(targets, 8) - torch.exp(logits)
    assert_close(far, wanted, HALF)


def test_linear_token_loss_on_cpu_matches_reference() -> None:
    case = make_case(9, 30, 8, SINGLE, torch.device("cpu"))
    exact, _, _, wanted = reference(case, with_entropy=True)
    loss = linear_token_loss(case.hidden, case.weight, case.targets, case.loss, temperature=TEMPERATURE, with_entropy=True)
    loss.backward()
    assert_close(loss, wanted, SINGLE)
    assert_close(case.weight.grad, exact.weight.grad, SINGLE)


def test_linear_logprob_rejects_mixed_dtypes() -> None:
    hidden, weight = torch.zeros(1, 4), torch.zeros(3, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"kernels\.linear_logprob.*bfloat16.*kernels\.linear_logprob\.reference"):
        linear_logprob(hidden, weight, torch.zeros(1, dtype=torch.int64))
