"""Rewards that misbehave on request: the response says how."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from megatron_rl.rewards.reward import BaseRewardModel, RewardSample


def _loop_in_python() -> float:
    while True:
        pass


def _loop_in_c() -> float:
    """Spin in C while holding the interpreter lock: no Python signal handler and no thread ever runs again."""
    collections.deque(itertools.repeat(0), maxlen=0)
    return 0.0


def _alarm() -> float:
    def ring(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(30)
    except TimeoutError:
        return 7.0
    return 0.0


def _forgotten_alarm() -> float:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    return 1.0


def _raise() -> float:
    raise ZeroDivisionError("planned")


def _start_child_and_hang(pid_file: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(pid_file).write_text(f"{os.getpid()} {child.pid}")
    return _loop_in_python()


_DEEDS = {
    "loop": _loop_in_python,
    "c_loop": _loop_in_c,
    "alarm": _alarm,
    "forgotten_alarm": _forgotten_alarm,
    "raise": _raise,
    "exit": lambda: sys.exit(3),
    "hard_exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0) and 0.0,
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "text": lambda: "not a number",
    "sleep": lambda: time.sleep(0.4) or 2.0,
    "torch": lambda: float("torch" in sys.modules),
}


def misbehave(prompt: str, response: str, answer: Any, row: dict[str, Any]) -> Any:
    """Do what the response names; any other response scores its length."""
    if response in _DEEDS:
        return _DEEDS[response]()
    return _start_child_and_hang(row["pid_file"]) if response == "child" else len(response)


def echo(prompt: str, response: str, answer: Any, row: dict[str, Any], factor: float = 1.0) -> float:
    """Score the row's own number, after checking that everything given belongs to it."""
    assert prompt == f"prompt {answer}" and response == f"response {answer}" and row["answer"] == answer
    return factor * answer


class Counting(BaseRewardModel):
    """Scores ``start`` plus 100 per ``setup`` of its process."""

    def __init__(self, start: int) -> None:
        self.value = start

    def setup(self) -> None:
        self.value += 100

    def forward(self, sample: RewardSample) -> float:
        return self.value


class BrokenSetup(BaseRewardModel):
    """Cannot be prepared."""

    def setup(self) -> None:
        raise OSError("no disk")

    def forward(self, sample: RewardSample) -> float:
        return 0.0


class NotAReward:
    """Lacks the base class."""
