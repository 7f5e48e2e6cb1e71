"""A worker that loads no torch: ``python -m tests.launchers.fake_worker TASK RUN_DIR``; the task says what it does."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from megatron_rl.runtime.processes import end_with_parent

EXIT_CODE_REQUEUE = 85


def main(task: str, run_dir: Path) -> int:
    end_with_parent(os.getppid())
    rank = os.environ["RANK"]
    (run_dir / f"rank{rank}.txt").write_text(f"{os.environ['WORLD_SIZE']} {os.environ['MEGATRON_RL_ATTEMPT']}")
    print(f"hello from rank {rank}", flush=True)
    if task == "evaluate" and rank == "1":
        print("ValueError: rank 1 is broken on purpose", file=sys.stderr)
        return 7
    if task == "generate":
        return _wait_for_signal(run_dir, rank)
    return 0


def _wait_for_signal(run_dir: Path, rank: str) -> int:
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, frame: received.append(got))
    (run_dir / f"ready{rank}").write_text(str(os.getpid()))
    deadline = time.monotonic() + 60
    while not received and time.monotonic() < deadline:
        time.sleep(0.02)
    (run_dir / f"saved{rank}").write_text(str(received))
    return EXIT_CODE_REQUEUE if received else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
