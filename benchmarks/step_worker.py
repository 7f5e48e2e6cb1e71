"""What every rank of a benchmarked step runs where vLLM alone is measured on its engine: the product's worker, watched."""

from __future__ import annotations

import sys
from pathlib import Path

from megatron_rl.cli import worker
from megatron_rl.runtime.known_warnings import silence_known_warnings


def main(argv: list[str]) -> int:
    """Run one task on this rank; arguments and exit code are the worker's."""
    silence_known_warnings()
    from benchmarks.step_bare import SameRequests, WatchedEngine
    from megatron_rl.training import rollout_assembly

    rollout_assembly.VllmEngine = WatchedEngine  # type: ignore[attr-defined]
    SameRequests.run_dir = Path(argv[1])
    return worker.main(argv) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
