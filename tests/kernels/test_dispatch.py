"""Which version of an op runs, and what an input that none takes is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.dispatch import SINGLE, runs_on_triton
from kernels.rmsnorm import rmsnorm


def test_runs_on_triton_only_on_cuda() -> None:
    assert not runs_on_triton("rmsnorm", SINGLE, torch.zeros(1, dtype=torch.float64))


def test_runs_on_triton_rejects_two_devices() -> None:
    with pytest.raises(ValueError, match=r"kernels\.rmsnorm: tensors lie on cpu, meta"):
        rmsnorm(torch.zeros(1, 2), torch.zeros(2, device="meta"), 1e-6)


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
