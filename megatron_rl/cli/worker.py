"""What every rank runs: ``python -m megatron_rl.cli.worker TASK RUN_DIR``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE, STOPPED_MARK
from megatron_rl.runtime.processes import end_with_parent


def main(argv: list[str]) -> int:
    """Run one task on this rank; returns its exit code. ``record`` hands a failure's traceback to torchrun."""
    # Before torch, whose import takes seconds: no rank may outlive its job and hold the GPU.
    end_with_parent(os.getppid())
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(_run)(argv) or 0


def _run(argv: list[str]) -> int:
    # Imported here so that a broken installation is reported through ``record`` too.
    from megatron_rl.config.run_files import read_run_config
    from megatron_rl.runtime.known_warnings import silence_known_warnings
    from megatron_rl.runtime.quick_imports import quick_imports

    silence_known_warnings()
    with quick_imports():
        from megatron_rl.training.entry import run_task

    task, run_dir = argv
    return leave(run_task(task, read_run_config(Path(run_dir)), Path(run_dir)))


def leave(code: int) -> int:
    """Exit code for the program that started this rank; see ``STOPPED_MARK``."""
    mark = os.environ.get(STOPPED_MARK)
    if code != EXIT_CODE_REQUEUE or not mark:
        return code
    Path(mark).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
