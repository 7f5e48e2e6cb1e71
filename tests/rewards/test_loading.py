import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.rewards.loading import absolute_spec, load_reward
from megatron_rl.rewards.reward import RewardSample

_SAMPLE = RewardSample(uid="t:0", prompt="prompt 4", response="response 4", row={"answer": 4})


def test_load_reward_binds_function_kwargs() -> None:
    assert load_reward("tests.rewards.scorers:echo", {"factor": 0.5}).forward(_SAMPLE) == 2.0


def test_load_reward_constructs_classes() -> None:
    assert load_reward("tests.rewards.scorers:Counting", {"start": 5}).forward(_SAMPLE) == 5


def test_load_reward_reads_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(response, **rest):\n    return len(response)\n")
    assert load_reward(f"{tmp_path}/mine.py:score", {}).forward(_SAMPLE) == 10


def test_absolute_spec_resolves_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_spec("mine.py:score") == f"{tmp_path}/mine.py:score"
    assert absolute_spec("package.module:score") == "package.module:score"


@pytest.mark.parametrize(
    ("spec", "kwargs", "message"),
    [
        ("just_a_name", {}, "write module:function or path/file.py:function"),
        ("no.such.module:f", {}, "importing no.such.module failed: ModuleNotFoundError"),
        ("no/such/file.py:f", {}, "there is no file no/such/file.py"),
        ("tests.rewards.scorers:nothing", {}, "has no 'nothing'"),
        ("tests.rewards.scorers:_DEEDS", {}, "is a dict, not a function"),
        ("tests.rewards.scorers:NotAReward", {}, "does not derive from BaseRewardModel"),
        ("tests.rewards.scorers:echo", {"fcator": 1}, "does not take .*'fcator'"),
        ("tests.rewards.scorers:Counting", {}, r"does not take reward\.function_kwargs: .*'start'"),
        ("megatron_rl.rewards.reward:BaseRewardModel", {}, "constructing it failed: TypeError"),
    ],
)
def test_load_reward_rejects_bad_specs(spec: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^reward\.function='.*{message}"):
        load_reward(spec, kwargs)


def test_load_reward_names_what_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import a_missing_library\n")
    with pytest.raises(ValueError, match="No module named 'a_missing_library'"):
        load_reward(f"{tmp_path}/mine.py:score", {})


def test_load_reward_needs_no_torch() -> None:
    code = (
        "import sys; from megatron_rl.rewards.loading import load_reward\n"
        "for name in ('reasoning_tasks:exact_match', 'math_answer:last_number_match', 'math_answer:MathVerify'):\n"
        "    load_reward('megatron_rl.rewards.' + name, {})\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
