"""Kernels of a trace, added up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.step_profile import KernelTime, read_profiles, summarise


def kernel(name: str, start_us: float, us: float, category: str = "kernel") -> dict[str, object]:
    return {"cat": category, "name": name, "ts": start_us, "dur": us}


def test_summary_matches_hand_computed() -> None:
    # Busy from 0 to 3000 and from 4000 to 5000 us; two streams overlap in between.
    events = [kernel("gemm", 0, 2000), kernel("copy", 1000, 2000), kernel("gemm", 4000, 1000)]
    found = summarise("step", [*events, {"name": "metadata"}, kernel("launch", 0, 9000, "cuda_runtime")], rows=1)
    assert found is not None
    assert found.top == (KernelTime(name="gemm", ms=3.0, count=2),)
    assert (found.span_ms, found.idle_frac) == (5.0, pytest.approx(0.2))


def test_operators_stand_in_for_kernels_on_a_cpu() -> None:
    found = summarise("step", [kernel("aten::mm", 0, 10, "cpu_op")], rows=5)
    assert found is not None and found.top[0].name == "aten::mm"
    assert summarise("step", [], rows=5) is None


def test_read_profiles_finds_every_trace(tmp_path: Path) -> None:
    for name in ("step_2_rank_0", "step_2_rank_1"):
        content = json.dumps({"traceEvents": [kernel("gemm", 0, 1000)]})
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(content.encode()))
    found = read_profiles(tmp_path)
    assert [profile.trace for profile in found] == ["step_2_rank_0", "step_2_rank_1"]
    assert "| 1.00 | 100.0% | 1 | `gemm` |" in found[0].markdown()
