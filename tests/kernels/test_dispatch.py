"""Which version of an op runs, and what an input that none takes is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.dispatch import SINGLE, runs_on_triton
from kernels.linear_logprob import linear_logprob
from kernels.masked_whiten import masked_whiten
from kernels.pack import pack
from kernels.reverse_scan import gae
from kernels.rmsnorm import rmsnorm
from kernels.token_loss import TokenLossInputs, TokenLossRule, token_loss


def test_runs_on_triton_only_on_cuda() -> None:
    assert not runs_on_triton("rmsnorm", SINGLE, torch.zeros(1, dtype=torch.float64))


def test_runs_on_triton_rejects_two_devices() -> None:
    with pytest.raises(ValueError, match=r"kernels\.rmsnorm: tensors lie on cpu, meta"):
        rmsnorm(torch.zeros(1, 2), torch.zeros(2, device="meta"), 1e-6)


@pytest.mark.parametrize("op", ["linear_logprob", "masked_whiten", "pack", "reverse_scan", "token_loss"])
def test_masks_and_indices_elsewhere_are_named(op: str) -> None:
    """Else a kernel would be handed an address of another device."""
    x, flags, index = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool, device="meta"), torch.zeros(2, dtype=torch.int64)
    calls = {
        "linear_logprob": lambda: linear_logprob(x, x, index.to("meta")),
        "masked_whiten": lambda: masked_whiten(x, flags),
        "pack": lambda: pack(x, index.to("meta"), torch.tensor([0, 1, 2]), num_tokens=2, max_seqlen=1),
        "reverse_scan": lambda: gae(x, x, flags, flags, 1.0, 1.0),
        "token_loss": lambda: token_loss(
            TokenLossInputs(logprobs=x, old_logprobs=x, advantages=x, weights=x, mask=flags), TokenLossRule()
        ),
    }
    with pytest.raises(ValueError, match=rf"kernels\.{op}: tensors lie on cpu, meta; move them to one device"):
        calls[op]()


def test_linear_logprob_rejects_other_widths() -> None:
    hidden, weight = torch.zeros(2, 8), torch.zeros(5, 4)
    with pytest.raises(ValueError, match=r"hidden \(2, 8\) with weight \(5, 4\), only \[N, H\] with \[V, H\]; use kernels"):
        linear_logprob(hidden, weight, torch.zeros(2, dtype=torch.int64))


def test_imports_load_no_triton() -> None:
    """CPU-only use never pays for Triton, nor needs it."""
    folder = Path(__file__).parents[2] / "kernels"
    names = sorted(f"kernels.{path.parent.name}" for path in folder.glob("*/__init__.py"))
    script = f"import sys, {', '.join(names)}; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=folder.parent, check=False).returncode == 0


@pytest.mark.gpu
def test_rmsnorm_rejects_double_on_cuda() -> None:
    x = torch.zeros(1, 2, dtype=torch.float64, device="cuda")
    with pytest.raises(ValueError, match=r"kernels\.rmsnorm.*float64.*use kernels\.rmsnorm\.reference instead"):
        rmsnorm(x, x[0], 1e-6)
