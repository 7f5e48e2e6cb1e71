"""Every kernel compiles to Hopper machine code; needs Triton but no GPU.

The interpreter forgives what the compiler refuses (types that change in a branch, shapes that are no powers of two).
Each op's host function is called on CPU tensors while launches are replaced by compilation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.bool: "i1",
    torch.uint8: "u8",
}
H200 = ("cuda", 90, 32)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


def _source(kernel: Any, values: dict[str, Any]) -> Any:
    """What a launch with these arguments compiles: 1 becomes a constant, multiples of 16 and pointers are marked."""
    from triton.compiler import ASTSource

    constants, signature, marks = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            constants[parameter.name], signature[parameter.name] = value, "constexpr"
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            marks[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, marks)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the kernels compiled so far; launches compile instead of running."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    names: list[str] = []

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {key: kwargs.pop(key) for key in ("num_warps", "num_stages") if key in kwargs}
        values = dict(zip(self.arg_names, args, strict=False)) | kwargs
        triton.compile(_source(self, values), target=GPUTarget(*H200), options=options)
        names.append(self.__name__)

    monkeypatch.setattr(JITFunction, "run", compile_instead)
    yield names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_linear_logprob_compiles(dtype: torch.dtype, compiled: list[str]) -> None:
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
    from kernels.linear_logprob.recompute import linear_logprob_triton

    hidden = torch.zeros(4, 16, dtype=dtype, requires_grad=True)
    weight = torch.zeros(9000, 16, dtype=dtype, requires_grad=True)
    targets = torch.zeros(4, dtype=torch.int64)
    arguments = {"temperature": 0.7, "with_entropy": True, "group": None}
    logprobs, entropy = linear_logprob_triton(hidden, weight, targets, **arguments)
    (logprobs.sum() + entropy.sum()).backward()
    loss = differentiated(lambda _, a, b: (a + b).sum())
    for half in (False, True):
        linear_token_loss_triton(hidden, weight, targets, loss, **arguments, half_logits=half).backward()
    assert set(compiled) == {"_absorb_tile", "_differentiate", "_scale"}


def test_token_loss_compiles(compiled: list[str]) -> None:
    from kernels.token_loss import TokenLossInputs, TokenLossRule
    from kernels.token_loss.triton import token_loss_triton

    x = torch.zeros(5)
    inputs = TokenLossInputs(
        logprobs=x,
        old_logprobs=x,
        advantages=x,
        weights=x,
        mask=x.bool(),
        importance=x,
        ref_logprobs=x,
        entropy=x,
    )
    token_loss_triton(inputs, TokenLossRule(entropy_coeff=0.1, kl_coeff=0.1))
    assert compiled == ["_token_loss"]


def test_reverse_scan_compiles(compiled: list[str]) -> None:
    from kernels.reverse_scan.triton import gae_triton, reverse_scan_triton

    x, flags = torch.zeros(2, 5), torch.zeros(2, 5).bool()
    reverse_scan_triton(x, x)
    gae_triton(x, x, flags, flags, 0.99, 0.95)
    assert compiled == ["_scan_row", "_gae_row"]


def test_masked_whiten_compiles(compiled: list[str]) -> None:
    from kernels.masked_whiten.triton import masked_whiten_triton

    masked_whiten_triton(torch.zeros(5), torch.zeros(5).bool())
    assert compiled == ["_block_moments", "_shift_and_scale"]


def test_pack_compiles(compiled: list[str]) -> None:
    from kernels.pack.triton import pack_triton, unpack_triton

    starts, cu_seqlens = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 2], dtype=torch.int32)
    packed = pack_triton(torch.zeros(1, 3, dtype=torch.bfloat16), starts, cu_seqlens, 2, 2)
    unpack_triton(packed, starts, cu_seqlens, 1, 3, 2)
    assert compiled == ["_copy_documents"] * 2


def test_repack_compiles(compiled: list[str]) -> None:
    from kernels.repack.triton import RepackTable

    x = torch.zeros(4096, dtype=torch.bfloat16)
    RepackTable([x[:2048], x[1:100]], [torch.zeros(2048), torch.zeros(99)]).run()
    assert compiled == ["_copy_pieces"] * 2


def test_fp8_blocks_compile(compiled: list[str]) -> None:
    from kernels.fp8_blocks import FP8, BlockScaled
    from kernels.fp8_blocks.triton import QuantiseTable, ScalesTable

    weight = BlockScaled(torch.zeros(128, 256, dtype=torch.bfloat16), torch.zeros(1, 2), torch.zeros(1, 2))
    ScalesTable([weight]).run()
    views = [weight.weight_NK, weight.weight_NK[1, 1:100]]
    QuantiseTable(views, [torch.zeros(view.shape, dtype=FP8) for view in views], [weight] * 2).run()
    assert compiled == ["_block_amax", "_quantise_pieces", "_quantise_pieces"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_layer_kernels_compile(dtype: torch.dtype, compiled: list[str]) -> None:
    from kernels.rmsnorm.triton import rmsnorm_triton
    from kernels.rope.triton import rope_triton
    from kernels.swiglu.triton import swiglu_triton

    x = torch.zeros(3, 2, 1000, dtype=dtype, requires_grad=True)
    rmsnorm_triton(x, torch.zeros(1000, dtype=dtype), 1e-6).sum().backward()
    rope_triton(x, torch.zeros(3, 64), torch.zeros(3, 64)).sum().backward()
    swiglu_triton(x).sum().backward()
    assert compiled == ["_forward", "_backward", "_rotate", "_rotate", "_forward", "_backward"]
