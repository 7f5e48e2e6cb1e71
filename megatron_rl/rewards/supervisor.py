"""The process between trainer and workers: loads the reward once, forks workers, and kills those that take too long.

It never runs a reward itself, so it always answers. A worker is forked with the reward already imported, so replacing a
killed one takes milliseconds. The trainer starts it with ``exec``: no torch, no thread, no lock of the trainer is inside.
"""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

from megatron_rl.rewards.loading import load_reward
from megatron_rl.rewards.messages import Outcome, PoolSettings, Ready, Task
from megatron_rl.rewards.reward import BaseRewardModel
from megatron_rl.rewards.worker import serve
from megatron_rl.runtime.processes import end_with_parent, leave_stop_signals_to_ranks

_ORPHAN_CHECK_S = 1.0
_SETUP_LIMIT_S = 120.0
_CHUNKS_PER_WORKER = 4


@dataclass(slots=True)
class _Worker:
    """A forked worker and what it is busy with."""

    pid: int
    connection: Connection
    deadline: float
    """Monotonic time at which the current sample (or ``setup``) has taken too long."""
    ready: bool = False
    pending: deque[int] = field(default_factory=deque)
    """Places of the samples it has not answered yet, in its order."""


class Supervisor:
    """Keeps ``num_workers`` workers alive and hands them samples."""

    def __init__(self, reward: BaseRewardModel, settings: PoolSettings, trainer: Connection, trainer_pid: int) -> None:
        """Fork the workers.

        Args:
            reward: What they run.
            settings: Their number and time limit.
            trainer: The trainer's connection, which they must not keep open.
            trainer_pid: When this is no longer the parent, the pool ends itself.
        """
        self._reward = reward
        self._settings = settings
        self._trainer = trainer
        self._trainer_pid = trainer_pid
        self._workers = [self._fork() for _ in range(settings.num_workers)]

    def _fork(self) -> _Worker:
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setsid()  # whatever a reward starts is killed together with it
                end_with_parent(parent)
                ours.close()
                self._trainer.close()
                serve(theirs, self._reward)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        return _Worker(pid=pid, connection=ours, deadline=time.monotonic() + _SETUP_LIMIT_S)

    def _end(self, worker: _Worker) -> int:
        """Kill a worker and what it started; return its wait status."""
        for kill in (os.killpg, os.kill):
            try:
                kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # not yet a group leader, or gone already
        worker.connection.close()
        return os.waitpid(worker.pid, 0)[1]

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            self._end(worker)

    def exit_if_orphaned(self) -> None:
        """End at once when the trainer is gone; the kernel then ends the workers."""
        if os.getppid() != self._trainer_pid:
            os._exit(1)

    def score(self, samples: list[bytes]) -> list[Outcome]:
        """Score a batch of pickled samples; answers in any order, exactly one per sample."""
        queue = deque(range(len(samples)))
        outcomes: list[Outcome] = []
        while len(outcomes) < len(samples):
            for worker in [worker for worker in self._workers if worker.ready and not worker.pending]:
                if queue:
                    self._hand_out(worker, queue, samples)
            outcomes.extend(self._collect(queue))
        return outcomes

    def _hand_out(self, worker: _Worker, queue: deque[int], samples: list[bytes]) -> None:
        """Give a worker a share of what is left: large messages at first, single samples at the end."""
        if _has_message(worker.connection):  # an idle worker has nothing to say: it has ended, and no sample is to blame
            self._end(worker)
            self._workers[self._workers.index(worker)] = self._fork()
            return
        size = max(1, len(queue) // (_CHUNKS_PER_WORKER * len(self._workers)))
        indices = tuple(queue.popleft() for _ in range(size))
        worker.pending.extend(indices)
        worker.deadline = time.monotonic() + self._settings.timeout_s
        try:
            worker.connection.send(Task(indices=indices, samples=tuple(samples[index] for index in indices)))
        except OSError:
            return  # it ended this very moment; _collect sees the closed connection and replaces it

    def _collect(self, queue: deque[int]) -> Iterable[Outcome]:
        """Wait for answers, deaths or the next deadline."""
        busy = [worker for worker in self._workers if worker.pending or not worker.ready]
        now = time.monotonic()
        limit = min(worker.deadline for worker in busy) - now
        arrived = set(wait([worker.connection for worker in busy], timeout=max(0.0, min(limit, _ORPHAN_CHECK_S))))
        self.exit_if_orphaned()
        now = time.monotonic()
        for worker in busy:
            if worker.connection in arrived:
                yield from self._receive(worker, queue)
            elif now >= worker.deadline:
                yield from self._replace(worker, queue, timed_out=True)

    def _receive(self, worker: _Worker, queue: deque[int]) -> Iterable[Outcome]:
        try:
            while _has_message(worker.connection):
                message = worker.connection.recv()
                worker.ready = True
                worker.deadline = time.monotonic() + self._settings.timeout_s
                if message is not None:
                    assert message.position == worker.pending.popleft()
                    yield message
        except (EOFError, OSError):
            yield from self._replace(worker, queue, timed_out=False)

    def _replace(self, worker: _Worker, queue: deque[int], *, timed_out: bool) -> Iterable[Outcome]:
        """Fork a successor; the sample in hand is lost, those behind it go back to the queue."""
        status = self._end(worker)
        if not worker.ready:
            cause = "took too long" if timed_out else f"ended with {_describe(status)}"
            raise RuntimeError(f"setup() of the reward in a worker process {cause}; its messages are above")
        if worker.pending:
            index = worker.pending.popleft()
            queue.extendleft(reversed(worker.pending))
            if timed_out:
                yield Outcome(position=index, kind="timeout")
            else:
                yield Outcome(position=index, kind="error", detail=f"the scoring process ended with {_describe(status)}")
        self._workers[self._workers.index(worker)] = self._fork()


def _has_message(connection: Connection) -> bool:
    """As ``connection.poll()``, at a tenth of its cost: this is asked once per sample."""
    return bool(select.select([connection], [], [], 0)[0])


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"


def _load(settings: PoolSettings) -> tuple[BaseRewardModel | None, str | None]:
    try:
        return load_reward(settings.spec, settings.kwargs), None
    except ValueError as error:
        return None, str(error)


def main(fd: int, trainer_pid: int) -> None:
    """Serve one pool over the socket ``fd`` until the trainer closes it or ends.

    Protocol: ``PoolSettings`` in, ``Ready`` out; then, as often as wanted, a list of pickled samples in and a list of
    outcomes (or the text of what broke the pool) out.
    """
    leave_stop_signals_to_ranks()
    trainer = Connection(fd)
    settings: PoolSettings = trainer.recv()
    reward, problem = _load(settings)
    if reward is None:
        trainer.send(Ready(problem=problem))
        return
    supervisor = Supervisor(reward, settings, trainer, trainer_pid)
    trainer.send(Ready(problem=None))
    try:
        while True:
            while not trainer.poll(_ORPHAN_CHECK_S):
                supervisor.exit_if_orphaned()
            samples: list[bytes] = trainer.recv()
            try:
                trainer.send(supervisor.score(samples))
            except RuntimeError as error:
                trainer.send(str(error))
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the trainer is done
    finally:
        supervisor.close()
