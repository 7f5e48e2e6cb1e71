"""One scoring process: a loop over samples in its main thread, so that rewards may use ``signal.alarm``."""

from __future__ import annotations

import pickle
import signal
import traceback
from multiprocessing.connection import Connection

from megatron_rl.rewards.messages import Outcome, Task
from megatron_rl.rewards.reward import BaseRewardModel, RewardSample

_MAX_CAUSE_CHARS = 500
_MAX_TRACEBACK_CHARS = 4000


def _as_float(value: object) -> float | None:
    """Accept what converts to a float (NumPy and torch scalars, bool); None stays None."""
    return None if value is None else float(value)  # type: ignore[arg-type]


def _score(reward: BaseRewardModel, index: int, pickled: bytes) -> Outcome:
    try:
        sample: RewardSample = pickle.loads(pickled)
        value = _as_float(reward.forward(sample))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a reward are errors of that sample as well
        cause = f"{type(error).__name__}: {error}"[:_MAX_CAUSE_CHARS]
        return Outcome(position=index, kind="error", detail=f"{cause}\n{traceback.format_exc()[-_MAX_TRACEBACK_CHARS:]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left behind would hit the next sample
    return Outcome(position=index, kind="scored", value=value)


def serve(connection: Connection, reward: BaseRewardModel) -> None:
    """Score tasks until the connection closes; one answer per sample, since the time limit is per sample."""
    reward.setup()
    connection.send(None)  # ready: time limits start only now
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        for index, pickled in zip(task.indices, task.samples, strict=True):
            connection.send(_score(reward, index, pickled))
