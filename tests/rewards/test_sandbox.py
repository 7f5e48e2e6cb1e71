import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.config.data import RewardConfig
from megatron_rl.rewards.reward import RewardError, RewardSample
from megatron_rl.rewards.sandbox import RewardPool
from megatron_rl.runtime.processes import STOP_SIGNALS
from tests.support.processes import is_alive

_LIMIT_S = 0.5


def _config(name: str = "misbehave", **changes: Any) -> RewardConfig:
    values = {"function": f"tests.rewards.scorers:{name}", "timeout_s": _LIMIT_S, "on_invalid": "mask"} | changes
    return RewardConfig.model_validate(values)


def _samples(*responses: str, **row: Any) -> list[RewardSample]:
    return [RewardSample(uid=f"t:{i}", prompt="p", response=r, row=row) for i, r in enumerate(responses)]


def _counts(result: Any) -> tuple[float, float, float]:
    return tuple(result.metrics[f"reward/{name}"].value for name in ("errors", "timeouts", "masked"))  # type: ignore[return-value]


def _wait_until_gone(pids: list[int], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in _descendants(child)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(_config()) as made:
        yield made


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_score_goes_on_when_slurm_signals_every_process(pool: RewardPool, number: signal.Signals) -> None:
    for pid in (pool.pid, *_descendants(pool.pid)):
        os.kill(pid, number)
    result = pool.score(_samples("a", "bb"))
    assert result.rewards == [1, 2]
    assert _counts(result) == (0, 0, 0)


@pytest.mark.parametrize("deed", ["loop", "c_loop"])
def test_score_ends_an_endless_sample_and_scores_the_others(pool: RewardPool, deed: str) -> None:
    started = time.monotonic()
    result = pool.score(_samples("a", "bb", deed, "ccc", "a", "a", "a", "a"))
    assert result.rewards == [1, 2, 0, 3, 1, 1, 1, 1]
    assert all(result.valid)
    assert _counts(result) == (0, 1, 0)
    assert _LIMIT_S <= time.monotonic() - started < _LIMIT_S + 3.0


def test_score_gives_a_timeout_the_configured_reward() -> None:
    with RewardPool(_config(timeout_s=0.2, timeout_reward=-1.0)) as pool:
        assert pool.score(_samples("loop", "a")).rewards == [-1, 1]


def test_score_survives_every_sample_timing_out(pool: RewardPool) -> None:
    assert _counts(pool.score(_samples(*["loop"] * 4))) == (0, 4, 0)
    assert pool.score(_samples("a")).rewards == [1]


def test_score_limits_samples_not_batches(pool: RewardPool) -> None:
    assert pool.score(_samples(*["sleep"] * 6)).rewards == [2.0] * 6  # 1.2 s each worker


def test_score_kills_what_a_sample_started(pool: RewardPool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    pool.score(_samples("child", pid_file=str(pid_file)))
    _wait_until_gone([int(text) for text in pid_file.read_text().split()])


def test_score_lets_rewards_use_alarms(pool: RewardPool) -> None:
    result = pool.score(_samples("alarm", "alarm", "a"))
    assert result.rewards == [7, 7, 1] and _counts(result) == (0, 0, 0)


def test_score_is_safe_from_forgotten_alarms(pool: RewardPool) -> None:
    pool.score(_samples("forgotten_alarm", "forgotten_alarm"))
    result = pool.score(_samples("sleep", "sleep"))
    assert result.rewards == [2, 2] and _counts(result) == (0, 0, 0)


@pytest.mark.parametrize("deed", ["raise", "exit", "hard_exit", "segfault", "none", "nan", "inf", "text"])
def test_score_masks_a_failed_sample(pool: RewardPool, deed: str) -> None:
    result = pool.score(_samples("a", deed, "bb"))
    assert result.rewards == [1, 0, 2]
    assert result.valid == [True, False, True]
    assert _counts(result) == (1, 0, 1)


@pytest.mark.parametrize(
    ("deed", "cause"),
    [
        ("raise", "ZeroDivisionError: planned"),
        ("exit", "SystemExit: 3"),
        ("hard_exit", "exit code 3"),
        ("segfault", "SIGSEGV"),
        ("nan", "the reward is nan"),
        ("none", "the reward is None"),
        ("text", "could not convert string to float"),
    ],
)
def test_score_rejects_a_failed_sample_by_default(deed: str, cause: str) -> None:
    with RewardPool(_config(on_invalid="error")) as pool, pytest.raises(RewardError) as caught:
        pool.score(_samples("a", deed))
    assert cause in str(caught.value)
    assert "sample t:1" in str(caught.value) and "1 of 2 samples" in str(caught.value)


def test_score_rejects_a_scorer_that_always_fails(pool: RewardPool) -> None:
    with pytest.raises(RewardError, match=r"3 of 3 samples.*reward\.max_error_frac=0\.5.*sample t:0: ZeroDivisionError"):
        pool.score(_samples(*["raise"] * 3))
    assert pool.score(_samples("a")).rewards == [1]


@pytest.mark.parametrize("num", [0, 1, 37, 1000])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_score_joins_rewards_to_their_samples(num: int, num_workers: int) -> None:
    samples = [
        RewardSample(uid=f"t:{k}", prompt=f"prompt {k}", response=f"response {k}", row={"answer": k}) for k in range(num)
    ]
    with RewardPool(_config("echo", function_kwargs={"factor": 0.5}), num_workers=num_workers) as pool:
        assert pool.score(samples).rewards == [k / 2 for k in range(num)]


def test_score_carries_large_samples(pool: RewardPool) -> None:
    assert pool.score(_samples("x" * 3_000_000, "y" * 1_000_000)).rewards == [3_000_000, 1_000_000]


def test_score_replaces_a_worker_that_died_while_idle(pool: RewardPool) -> None:
    for pid in _descendants(pool.pid):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    result = pool.score(_samples("a", "bb", "ccc"))
    assert result.rewards == [1, 2, 3] and _counts(result) == (0, 0, 0)


def test_score_is_fast_for_tiny_samples(pool: RewardPool) -> None:
    samples = _samples(*["abc"] * 256)
    pool.score(samples)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        pool.score(samples)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1  # 0.012 s on two quiet cores


def test_pool_starts_fast_and_without_torch() -> None:
    started = time.monotonic()
    with RewardPool(_config()) as pool:
        assert time.monotonic() - started < 2.0
        assert pool.score(_samples("torch")).rewards == [0]


def test_pool_sets_each_worker_up_once() -> None:
    with RewardPool(_config("Counting", function_kwargs={"start": 5})) as pool:
        assert set(pool.score(_samples(*["a"] * 8)).rewards) == {105}


def test_pool_reads_functions_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def f(prompt, response, answer, row):\n    print('hello')\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    with RewardPool(_config(function="mine.py:f")) as pool:
        assert pool.score(_samples("a")).rewards == [3]


def test_pool_rejects_an_unusable_reward() -> None:
    with pytest.raises(ValueError, match=r"reward\.function='tests\.rewards\.scorers:nothing'"):
        RewardPool(_config("nothing"))


def test_pool_rejects_a_reward_whose_setup_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with RewardPool(_config("BrokenSetup")) as pool, pytest.raises(RewardError, match=r"setup\(\) of the reward"):
        pool.score(_samples("a"))
    assert "no disk" in capfd.readouterr().err


def test_close_leaves_no_process() -> None:
    pool = RewardPool(_config())
    pids = [pool.pid, *_descendants(pool.pid)]
    assert len(pids) == 3
    pool.close()
    pool.close()
    _wait_until_gone(pids)


_TRAINER = """
import sys, threading, time
from megatron_rl.rewards.sandbox import RewardPool
from megatron_rl.runtime.processes import STOP_SIGNALS
from tests.rewards.test_sandbox import _config, _descendants, _samples
pool = RewardPool(_config(timeout_s=300.0))
pool.score(_samples("a"))
print(pool.pid, *_descendants(pool.pid), flush=True)
pool.score(_samples("c_loop")) if sys.argv[1] == "busy" else time.sleep(300)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_processes_end_when_the_trainer_is_killed(state: str) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", _TRAINER, state], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(text) for text in trainer.stdout.readline().split()]
    assert len(pids) == 3 and all(map(is_alive, pids))
    time.sleep(0.3)
    trainer.kill()
    trainer.wait()
    _wait_until_gone(pids)
