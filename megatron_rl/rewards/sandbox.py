"""Scoring in worker processes with a hard time limit per sample."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from megatron_rl.config.data import RewardConfig
from megatron_rl.rewards.loading import absolute_spec
from megatron_rl.rewards.messages import PoolSettings, Ready
from megatron_rl.rewards.reward import RewardError, RewardResult, RewardSample
from megatron_rl.rewards.verdict import judge

_IMPORT_LIMIT_S = 120.0
_CLOSE_LIMIT_S = 5.0
_BOOTSTRAP = (
    "import json, sys; fd, pid, path = sys.argv[1:]; sys.path[:] = json.loads(path); "
    "from megatron_rl.rewards.supervisor import main; main(int(fd), int(pid))"
)


def _start(fd: int) -> subprocess.Popen[bytes]:
    """Start the supervisor with this process's import path, in a session of its own (Ctrl-C is the trainer's to handle)."""
    arguments = [str(fd), str(os.getpid()), json.dumps(sys.path)]
    return subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, *arguments], pass_fds=[fd], stdin=subprocess.DEVNULL, start_new_session=True
    )


class RewardPool:
    """Scores responses in ``reward.num_workers`` processes started afresh, without torch.

    A sample that exceeds ``reward.timeout_s`` costs its worker its life (SIGKILL, so loops inside C code end too) and
    nothing else. Processes end with the pool, and also when this process is killed. The order of answers never depends on
    timing. Not for use from several threads at once.

    Example:
        with RewardPool(config.reward) as pool:
            result = pool.score(samples)
    """

    def __init__(self, config: RewardConfig, num_workers: int | None = None) -> None:
        """Start the processes and import the reward there.

        Args:
            config: The reward section.
            num_workers: Workers of this pool, where several ranks share a node; None = ``reward.num_workers``.

        Raises:
            ValueError: The reward cannot be imported or called.
        """
        self._config = config
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno())
        self._connection = Connection(ours.detach())
        settings = PoolSettings(
            spec=absolute_spec(config.function),
            kwargs=dict(config.function_kwargs),
            num_workers=config.num_workers if num_workers is None else num_workers,
            timeout_s=config.timeout_s,
        )
        ready: Ready = self._ask(settings, limit_s=_IMPORT_LIMIT_S)
        if ready.problem is not None:
            self.close()
            raise ValueError(ready.problem)

    @property
    def pid(self) -> int:
        """Process id of the supervisor, the parent of the workers."""
        return self._process.pid

    def score(self, samples: Sequence[RewardSample]) -> RewardResult:
        """Score a batch; any number of samples, none included.

        Raises:
            RewardError: Scoring failed and ``reward.on_invalid`` or ``reward.max_error_frac`` says to stop.
        """
        if not samples:
            return judge([], [], self._config)
        answer = self._ask([pickle.dumps(sample) for sample in samples], limit_s=None)
        if isinstance(answer, str):
            raise RewardError(f"reward.function={self._config.function!r}: {answer}")
        return judge(answer, samples, self._config)

    def _ask(self, message: Any, limit_s: float | None) -> Any:
        """Send and wait. After any interruption the conversation is out of step, so the pool closes."""
        try:
            self._connection.send(message)
            if not self._connection.poll(limit_s):
                raise RewardError(f"reward.function={self._config.function!r}: not imported within {limit_s:.0f} s")
            return self._connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise RewardError(
                f"reward.function={self._config.function!r}: the scoring processes ended unexpectedly "
                f"(exit code {self._process.returncode}); their messages are above"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes; again and again is fine."""
        self._connection.close()
        try:
            self._process.wait(timeout=_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers follow: the kernel ends them with their parent
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
