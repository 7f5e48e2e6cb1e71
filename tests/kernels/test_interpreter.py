"""Runs this folder's Triton tests on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.environment import num_visible_gpus

HERE = Path(__file__).parent
FIXTURE = "device: torch.device"
"""What a test that launches kernels takes."""


@pytest.mark.skipif(num_visible_gpus(os.environ) > 0, reason="this process runs them on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is the process it starts")
def test_interpreter_matches_reference() -> None:
    """A process of its own: Triton reads the switch at import, and other tests have imported it by now."""
    files = [str(path) for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__) and FIXTURE in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *files]
    answer = subprocess.run(
        command, cwd=HERE.parents[1], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout[-8000:] + answer.stderr[-2000:]
    assert "skipped" not in answer.stdout.splitlines()[-1], answer.stdout[-2000:]
