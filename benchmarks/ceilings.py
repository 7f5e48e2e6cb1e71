"""What the hardware can do at best, measured: the rates that shares of a ceiling refer to.

Run: ``python -m benchmarks.ceilings`` prints ``{"device": name, "matmul": FLOP/s, "copy": bytes/s}`` of one device.
"""

from __future__ import annotations

import json
import platform
import time

import torch

from benchmarks.harness import Bench, best_device

MATMUL_WIDTH = {"cuda": 8192, "cpu": 512}
COPY_BYTES = {"cuda": 2**32, "cpu": 2**24}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}


def measure_ceilings(bench: Bench) -> None:
    """Fill ``bench.ceilings``: a square product (bf16 on a GPU) in FLOP/s, a device copy in bytes read + written a second."""
    kind = bench.device.type
    width, size = MATMUL_WIDTH[kind], COPY_BYTES[kind]
    name = str(DTYPE[kind]).removeprefix("torch.")
    a, b = (torch.randn(width, width, device=bench.device).to(DTYPE[kind]) for _ in range(2))
    row = bench.measure("ceiling", f"{name} product {width}^3", lambda: a @ b, repeats=20)
    assert row.ms is not None, row.note
    bench.ceilings["matmul"] = 2.0 * width**3 / (row.ms * 1e-3)
    source = torch.randn(size // 4, device=bench.device)
    target = torch.empty_like(source)
    row = bench.measure("ceiling", f"copy of {size / 2**30:g} GiB", lambda: target.copy_(source), repeats=10)
    assert row.ms is not None, row.note
    bench.ceilings["copy"] = 2.0 * source.nbytes / (row.ms * 1e-3)


def main() -> None:
    """Print the ceilings as the last line."""
    device = best_device()
    bench = Bench(device, time.monotonic() + 120)
    measure_ceilings(bench)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    print(json.dumps({"device": name, **bench.ceilings}))


if __name__ == "__main__":
    main()
