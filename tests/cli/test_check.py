"""megatron-rl check: a good configuration passes, sixty broken ones are each told what is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_rl.cli import check
from megatron_rl.config.errors import ConfigError
from tests.cli.broken_configs import BROKEN

PROMPTS = '{"prompt": "a", "answer": "b"}\n{"prompt": "%s", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n' % ("x" * 99)
REWARD = """
import torch_is_not_needed_for_this_check

def score(prompt, response, answer, row):
    return 0.0

def two_arguments(prompt, response):
    return 0.0

def needs_scale(prompt, response, answer, row, scale):
    return scale
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty").mkdir()
    (folder / "prompts.jsonl").write_text(PROMPTS)
    (folder / "bad.jsonl").write_text("{not json}\n")
    (folder / "reward.py").write_text(REWARD)
    (folder / "notes.txt").write_text("plain text")
    (folder / "notes.py").write_text("def score(:\n")
    return folder


def report_of(overrides: list[str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        check.run(overrides)
    return caught.value.problems


@pytest.mark.parametrize("name", BROKEN)
def test_check_rejects_broken_configuration(name: str, files: Path) -> None:
    broken = BROKEN[name]
    problems = report_of([override.replace("FILES", str(files)) for override in broken.overrides])
    assert any(broken.says.replace("FILES", str(files)) in problem for problem in problems), "\n".join(problems)


def test_catalogue_messages_are_distinct() -> None:
    assert len({broken.says for broken in BROKEN.values()}) == len(BROKEN) >= 30


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=tiny_cpu"],
        ["experiment=tiny_cpu", "algorithm=ppo"],
        ["experiment=tiny_cpu", "actor.parallel.pipeline=2", "critic.parallel.pipeline=4"],
        ["--task=plan", "model=deepseek_v3", "actor.parallel.tensor=8", "actor.parallel.expert=64"],
    ],
    ids=["grpo", "ppo", "tp2_pp2", "plan"],
)
def test_check_accepts(overrides: list[str], capsys) -> None:
    assert check.run(overrides) == 0
    assert capsys.readouterr().out.startswith("ok: ")


def test_check_rejects_every_problem_at_once() -> None:
    problems = report_of(
        ["experiment=tiny_cpu", "rollout.n=1", "actor.parallel.tensor=4", "reward.function=nowhere:f", "trainer.save_freq=0"]
    )
    assert len(problems) == 4


def test_check_prints_batches_memory_and_data(capsys) -> None:
    check.run(["experiment=tiny_cpu", "algorithm=ppo"])
    shown = capsys.readouterr().out
    assert "samples / step                    256" in shown
    assert "critic optimizer steps / rollout  1" in shown
    assert "engine KV cache" in shown
    assert "64 prompts" in shown


def test_check_prints_the_order_of_the_ranks(capsys) -> None:
    check.run(["experiment=tiny_cpu", "actor.parallel.tensor=2", "rollout.tensor_parallel_size=4"])
    assert "at best 0.0; order of the actor's ranks, fastest first: data=2 tensor=2" in capsys.readouterr().out


def test_check_needs_no_torch_and_little_time(tmp_path) -> None:
    code = (
        "import sys; from megatron_rl.cli.main import main; code = main(['check', 'experiment=tiny_cpu']); "
        "sys.exit(code or ('torch' in sys.modules) * 9)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 15, "5 s on an idle machine"
