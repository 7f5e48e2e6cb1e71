"""Checks and measures every kernel in one call: ``python benchmarks/kernels.py --device cuda --out DIR``.

Prints a line per check that failed, a line per measurement as it comes, the table and a one-line JSON summary last, and
writes ``DIR/kernels.json`` and ``DIR/kernels.md``. Speed-ups are printed only where every check passed. Stops by itself
after ``--limit`` seconds with what it has. ``--device cpu`` is a dry run at toy sizes (set TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

# This file's folder would answer ``import kernels`` with this file.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402

from benchmarks.ceilings import measure_ceilings  # noqa: E402
from benchmarks.harness import Bench, OutOfTimeError, stopped_after, table, write_json  # noqa: E402
from benchmarks.head_cases import HeadInputs, HeadSize, bench_head, recompute_loss, sweep_head, token_loss_step  # noqa: E402
from benchmarks.head_peers import compare_heads, comparison_table  # noqa: E402
from benchmarks.kernel_checks import Check, run_checks  # noqa: E402
from benchmarks.layer_cases import LayerSize, bench_layer, bench_moves, bench_repack, bench_rl  # noqa: E402

HEADS = (HeadSize(16_384, 151_936, 1536), HeadSize(16_384, 151_936, 3584))
TOY_HEADS = (HeadSize(12, 200, 16),)


def main() -> int:
    """Exit code 0 where every check passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=360, help="seconds")
    parser.add_argument("--no-sweep", action="store_true", help="leave the tilings of the LM head out")
    parser.add_argument("--checks-only", action="store_true")
    chosen = parser.parse_args()
    bench = Bench(torch.device(chosen.device), time.monotonic() + chosen.limit - 15)
    started, checks, finished = time.monotonic(), list[Check](), False
    try:
        with stopped_after(chosen.limit - 10):
            _check(bench, checks)
            if not chosen.checks_only:
                _measure(bench, sweep=not chosen.no_sweep)
            finished = True
    except OutOfTimeError:
        print("out of time; what follows is what there is", flush=True)
    finally:
        if torch.distributed.is_initialized():  # by a peer that knows vocabularies cut over ranks only
            torch.distributed.destroy_process_group()
    return _report(bench, checks, chosen.out, time.monotonic() - started, finished)


def _check(bench: Bench, checks: list[Check]) -> None:
    torch.manual_seed(0)
    for check in run_checks(bench.device, large=bench.device.type == "cuda"):
        checks.append(check)
        print(f"  {'ok  ' if check.passed else 'FAIL'} {check.name}: {check.error:.1e} (limit {check.limit:.0e})", flush=True)
    bench.free()


def _measure(bench: Bench, sweep: bool) -> None:
    if bench.device.type == "cpu":
        _measure_toys(bench)
        return
    measure_ceilings(bench)
    sections: list[Callable[[], None]] = [
        *(lambda size=size: bench_head(bench, size) for size in HEADS),  # type: ignore[misc]
        lambda: bench_repack(bench, 28, 12, 2, 128, 1536),
        lambda: bench_repack(bench, 28, 28, 4, 128, 3584),
        lambda: bench_layer(bench, LayerSize(16_384, 3584, 18_944, 28, 128)),
        lambda: bench_rl(bench, 1024, 2048),
        lambda: bench_moves(bench, 64, 2048, 1536),
        lambda: _profile(bench, HEADS[0]),
    ]
    if sweep:
        sections += [lambda size=size: sweep_head(bench, size) for size in HEADS]  # type: ignore[misc]
    for section in sections:
        try:
            section()
        except Exception as error:
            print(f"  section failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
        bench.free()


def _measure_toys(bench: Bench) -> None:
    bench_head(bench, TOY_HEADS[0])
    bench_repack(bench, 2, 4, 2, 8, 16)
    bench_layer(bench, LayerSize(3, 16, 24, 2, 8))
    bench_rl(bench, 2, 40)
    bench_moves(bench, 2, 8, 4)


def _profile(bench: Bench, size: HeadSize) -> None:
    """Print where the time of one step of both LM-head ops goes."""
    from torch.profiler import ProfilerActivity, profile

    inputs = HeadInputs.draw(size, bench.device)
    steps = {
        "linear_token_loss": lambda: token_loss_step(inputs, None, False),
        "linear_logprob": lambda: recompute_loss(inputs, None, False).backward(),
    }
    for name, step in steps.items():
        inputs.clear()
        step()
        inputs.clear()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            step()
            torch.cuda.synchronize()
        kernels = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)[:8]
        print(f"  profile of {name}:")
        for event in kernels:
            print(f"    {event.self_device_time_total / 1e3:8.2f} ms {event.count:4d} x {event.key[:90]}", flush=True)


def _report(bench: Bench, checks: list[Check], out: Path, seconds: float, finished: bool) -> int:
    failed = [check for check in checks if not check.passed]
    summary: dict[str, object] = {
        "finished": finished,
        "seconds": round(seconds, 1),
        "checks": len(checks),
        "failed": {check.name: check.error for check in failed},
        "ceilings": bench.ceilings,
    }
    # No ratio is worth anything where a result is wrong.
    comparisons = [] if failed else [one for size in HEADS for one in compare_heads(bench.rows, size.case)]
    errors = {check.name: check.error for check in checks}
    write_json(out / "kernels.json", bench.rows, {**summary, "errors": errors, "head": [asdict(one) for one in comparisons]})
    text = f"{comparison_table(comparisons)}\n\n{table(bench.rows)}\n"
    (out / "kernels.md").write_text(text)
    print(text)
    print(json.dumps(summary))
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
