"""What every rank runs: ``python -m megatron_rl.cli.worker TASK RUN_DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from megatron_rl.config.run_files import read_run_config


@record
def main(argv: list[str]) -> int:
    """Run one task on this rank; returns its exit code. ``record`` hands a failure's traceback to torchrun."""
    # Imported here so that a broken installation is reported through ``record`` too.
    from megatron_rl.runtime.known_warnings import silence_known_warnings

    silence_known_warnings()
    from megatron_rl.training.entry import run_task

    task, run_dir = argv
    return run_task(task, read_run_config(Path(run_dir)), Path(run_dir))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
