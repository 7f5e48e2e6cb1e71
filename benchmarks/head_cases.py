"""The vocabulary loss: LM head, log-prob and backward, ours against unfused torch, Megatron-Core and liger-kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.harness import Bench, Work
from benchmarks.head_peers import LIGER, MEGATRON, UNFUSED
from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
from kernels.linear_logprob.recompute import linear_logprob_triton
from kernels.linear_logprob.tiles import Tiling
from kernels.vocab_logprob import vocab_logprob

LOSS_TOKENS = (2048, 2816, 3584, 4096, 5632)
LOSS_ROWS = (2048, 4096, 8192)
RECOMPUTE_TILES = ((16_384, 2048), (16_384, 4096), (16_384, 8192), (4096, 4096), (4096, 8192))


@dataclass(frozen=True, slots=True)
class HeadSize:
    """Tokens by vocabulary by hidden. Example: ``HeadSize(16_384, 151_936, 1536)``, Qwen2.5-1.5B."""

    tokens: int
    vocab: int
    hidden: int

    @property
    def flops(self) -> float:
        """Of one matrix product."""
        return 2.0 * self.tokens * self.vocab * self.hidden

    @property
    def case(self) -> str:
        """Name of the forward and backward comparison."""
        return f"head {self.tokens}x{self.vocab} h{self.hidden} fwd+bwd"


@dataclass(slots=True)
class HeadInputs:
    """bf16 leaves, targets and a per-token factor of the loss."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    factors: Tensor

    @classmethod
    def draw(cls, size: HeadSize, device: torch.device) -> HeadInputs:
        """Random inputs whose logits have unit variance."""
        generator = torch.Generator(device=device).manual_seed(0)
        hidden = torch.randn(size.tokens, size.hidden, device=device, generator=generator).bfloat16()
        weight = (torch.randn(size.vocab, size.hidden, device=device, generator=generator) / size.hidden**0.5).bfloat16()
        targets = torch.randint(size.vocab, (size.tokens,), device=device, generator=generator)
        factors = torch.full((size.tokens,), 1.0 / size.tokens, device=device)
        return cls(hidden.requires_grad_(), weight.requires_grad_(), targets, factors)

    def clear(self) -> None:
        """Drop the gradients."""
        self.hidden.grad = self.weight.grad = None


def bench_head(bench: Bench, size: HeadSize) -> None:
    """All variants of one size."""
    inputs = HeadInputs.draw(size, bench.device)
    _bench_products(bench, size, inputs)
    work = Work("matmul", 3 * size.flops)
    for name, step in _variants(bench, size.case, inputs).items():
        bench.measure(size.case, name, step, work, prepare=inputs.clear)
    with torch.no_grad():
        scored = partial(recompute_loss, inputs, None, False)
        bench.measure(size.case.replace("fwd+bwd", "fwd"), "linear_logprob", scored, Work("matmul", size.flops))
        unfused = partial(_unfused_logprobs, inputs)
        bench.measure(size.case.replace("fwd+bwd", "fwd"), UNFUSED, unfused, Work("matmul", size.flops))


def _bench_products(bench: Bench, size: HeadSize, inputs: HeadInputs) -> None:
    """The products a step is made of, alone: what no version can go below."""
    hidden, weight = inputs.hidden.detach()[:4096], inputs.weight.detach()
    work = Work("matmul", size.flops * hidden.shape[0] / size.tokens)
    case = f"products of {hidden.shape[0]} tokens, h{size.hidden}"
    grads = torch.randn(hidden.shape[0], size.vocab, device=bench.device).to(hidden.dtype)
    bench.measure(case, "logits, bf16", lambda: hidden @ weight.T, work)
    if bench.device.type == "cuda":
        bench.measure(case, "logits, f32", lambda: torch.mm(hidden, weight.T, out_dtype=torch.float32), work)
        bench.measure(case, "hidden gradient, f32", lambda: torch.mm(grads, weight, out_dtype=torch.float32), work)
    total = torch.zeros_like(weight)
    bench.measure(case, "weight gradient, added in bf16", lambda: total.addmm_(grads.T, hidden), work)


def sweep_head(bench: Bench, size: HeadSize) -> None:
    """Our two ops under several tilings."""
    inputs, work = HeadInputs.draw(size, bench.device), Work("matmul", 3 * size.flops)
    for tokens, rows in product(LOSS_TOKENS, LOSS_ROWS):
        step = partial(token_loss_step, inputs, Tiling(tokens, rows), False)
        bench.measure(size.case, f"linear_token_loss {tokens}x{rows}", step, work, repeats=3, prepare=inputs.clear)
    for tokens in LOSS_TOKENS:
        step = partial(token_loss_step, inputs, Tiling(tokens, 8192), False, half_logits=True)
        bench.measure(size.case, f"half linear_token_loss {tokens}x8192", step, work, repeats=3, prepare=inputs.clear)
    for tokens, rows in RECOMPUTE_TILES:
        tiling = Tiling(tokens, rows)
        bench.measure(
            size.case,
            f"linear_logprob {tokens}x{rows}",
            lambda tiling=tiling: recompute_loss(inputs, tiling, False).backward(),  # type: ignore[misc]
            work,
            repeats=3,
            prepare=inputs.clear,
        )


def _variants(bench: Bench, case: str, inputs: HeadInputs) -> dict[str, Callable[[], object]]:
    variants: dict[str, Callable[[], object]] = {
        UNFUSED: lambda: (_unfused_logprobs(inputs) * inputs.factors).sum().backward(),
        "linear_token_loss": partial(token_loss_step, inputs, None, False),
        "linear_token_loss + entropy": partial(token_loss_step, inputs, None, True),
        "half linear_token_loss": partial(token_loss_step, inputs, None, False, half_logits=True),
        "linear_logprob": lambda: recompute_loss(inputs, None, False).backward(),
        "linear_logprob + entropy": lambda: recompute_loss(inputs, None, True).backward(),
        "vocab_logprob, chunked torch": lambda: _chunked(inputs).backward(),
    }
    for name, make in ((LIGER, _liger), (MEGATRON, _megatron)):
        try:
            variants[name] = make(inputs)
        except Exception as error:
            bench.skip(case, name, f"not available: {type(error).__name__}: {str(error)[:100]}")
    return variants


def _unfused_logprobs(inputs: HeadInputs) -> Tensor:
    logits = (inputs.hidden @ inputs.weight.T).float()
    return torch.log_softmax(logits, dim=-1).gather(-1, inputs.targets[:, None])[:, 0]


def recompute_loss(inputs: HeadInputs, tiling: Tiling | None, with_entropy: bool) -> Tensor:
    """Loss over the log-probs of ``linear_logprob``; its backward pass recomputes the logits."""
    logprobs, entropy = linear_logprob_triton(
        inputs.hidden,
        inputs.weight,
        inputs.targets,
        temperature=1.0,
        with_entropy=with_entropy,
        group=None,
        tiling=tiling,
    )
    total = (logprobs * inputs.factors).sum()
    return total if entropy is None else total + (entropy * inputs.factors).sum()


def token_loss_step(inputs: HeadInputs, tiling: Tiling | None, with_entropy: bool, half_logits: bool = False) -> None:
    """The same loss inside ``linear_token_loss``, forward and backward."""

    def loss(tokens: slice, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
        total = (logprobs * inputs.factors[tokens]).sum()
        return total if entropy is None else total + (entropy * inputs.factors[tokens]).sum()

    linear_token_loss_triton(
        inputs.hidden,
        inputs.weight,
        inputs.targets,
        differentiated(loss),
        temperature=1.0,
        with_entropy=with_entropy,
        group=None,
        tiling=tiling,
        half_logits=half_logits,
    ).backward()


def _chunked(inputs: HeadInputs) -> Tensor:
    logprobs, _ = vocab_logprob(
        inputs.hidden,
        inputs.weight,
        inputs.targets,
        temperature=1.0,
        with_entropy=False,
        chunk_size=max(1, 2**26 // inputs.weight.shape[0]),
        group=None,
    )
    return (logprobs * inputs.factors).sum()


def _liger(inputs: HeadInputs) -> Callable[[], object]:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda: loss(inputs.weight, inputs.hidden, inputs.targets).backward()


def _megatron(inputs: HeadInputs) -> Callable[[], object]:
    import torch.distributed as dist
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

    if not inputs.hidden.is_cuda:
        raise RuntimeError("needs a GPU")
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)

    def run() -> None:
        logits = (inputs.hidden @ inputs.weight.T)[:, None]
        losses = fused_vocab_parallel_cross_entropy(logits, inputs.targets[:, None], dist.group.WORLD)
        (losses[:, 0] * inputs.factors).sum().backward()

    return run
