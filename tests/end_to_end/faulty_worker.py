"""A worker one rank of which fails in a chosen phase. Environment: ``FAULT=<rank>:<phase>:<manner>``, ``FAULT_FILE``.

The file gets the time of the failure, so that a test can tell how long the others took to notice.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

from launchers.submit import launch_task
from megatron_rl.cli import worker
from megatron_rl.cli.compose import compose_run


def _fail(manner: str) -> NoReturn:
    Path(os.environ["FAULT_FILE"]).write_text(str(time.time()))
    if manner == "exit":
        os._exit(41)
    if manner == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if manner == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    raise ZeroDivisionError("this rank is broken on purpose")


def _install(phase: str, manner: str) -> None:
    def broken(*args: Any, **kwargs: Any) -> NoReturn:
        _fail(manner)

    if phase == "generate":
        from megatron_rl.rollout.vllm_engine import VllmEngine

        VllmEngine.generate = broken  # type: ignore[method-assign]
    else:
        from megatron_rl.training.megatron_role import MegatronRole

        assert phase == "update", phase
        MegatronRole.update = broken  # type: ignore[method-assign]


def main(argv: list[str]) -> int:
    """A rank when torchrun started it, else ``TASK OVERRIDES...`` in the place of ``megatron-rl``."""
    if "RANK" not in os.environ:
        return launch_task(argv[0], compose_run(argv[1:]), module="tests.end_to_end.faulty_worker")
    rank, phase, manner = os.environ["FAULT"].split(":")
    if os.environ["RANK"] == rank:
        _install(phase, manner)
    return worker.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
