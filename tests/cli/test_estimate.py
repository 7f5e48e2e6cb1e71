"""The command: what it reads, what it prints, and that it stays light."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from megatron_rl.cli.estimate import joined_braces, parse
from megatron_rl.cli.main import main
from megatron_rl.config.errors import ConfigError

CALL = ["estimate", "model=qwen2_7b", "gpu=A100-40GB", "num_gpus=4", "batch_size=32", "epochs=3"]


def test_parse_splits_own_keys_from_the_configurations() -> None:
    call = parse([*CALL[1:], "rollout.n=4", "algorithm=grpo", "price_per_hour=8.5", "--json"])
    assert call.gpu == "A100-40GB" and call.counts == {"num_gpus": 4} and call.price_per_hour == 8.5 and call.as_json
    assert call.overrides == (
        "data.train_batch_size=32",
        "trainer.total_epochs=3",
        "model=qwen2_7b",
        "rollout.n=4",
        "algorithm=grpo",
    )


def test_joined_braces_mends_what_the_shell_split() -> None:
    assert joined_braces(["device_map={actor:", "H100,", "critic:", "A100}", "num_gpus=8"]) == [
        "device_map={actor: H100, critic: A100}",
        "num_gpus=8",
    ]


def test_estimate_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"peak_mem_per_gpu", "time_per_epoch", "total_gpu_hours", "cost", "recommended_strategy"} <= answer.keys()
    assert answer["units"]["peak_mem_per_gpu"] == "GiB"


def test_estimate_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    split_map = ["device_map={actor:", "H100,", "critic:", "A100}"]
    assert main(["estimate", "model=qwen2_7b", "num_gpus=8", "batch_size=32", *split_map]) == 0
    text = capsys.readouterr().out
    for words in (
        "memory of one H100-80GB",
        "memory of one A100-80GB",
        "one step",
        "GPU hours",
        "cheapest first",
        "calibration",
    ):
        assert words in text


def test_estimate_alone_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate"]) == 0
    assert "price_per_hour" in capsys.readouterr().out


WRONG = {
    "key": (["num_gpu=4"], "num_gpu: no such key; did you mean num_gpus?"),
    "config_key": (["actor.paralel.tensor=2"], "actor.paralel.tensor: no such key; did you mean actor.parallel.tensor?"),
    "model": (["model=qwen2_7"], "did you mean qwen2_7b?"),
    "count": (["num_gpus=four"], "num_gpus=four: must be a whole number above 0"),
    "price": (["price_per_hour=cheap"], "price_per_hour=cheap: must be a number"),
    "map": (["device_map=H100"], "device_map=H100: write {name: value, name: value} in quotes"),
    "word": (["A100"], "A100: write key=value"),
    "few_prompts": (["dataset_size=31"], "dataset_size=31: fewer prompts than a step takes; lower data.train_batch_size=32"),
    "mean": (["prompt_tokens=9999"], "prompt_tokens=9999: the mean is above data.max_prompt_length=512"),
    "file": (["measurements=nowhere.json"], "measurements=nowhere.json: no such file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_estimate_rejects(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, message = WRONG[case]
    assert main([*CALL, *wrong]) == 2
    assert message in capsys.readouterr().err


def test_parse_rejects_a_missing_card_and_model_at_once() -> None:
    with pytest.raises(ConfigError) as failure:
        parse(["num_gpus=4"])
    assert [problem.split(":")[0] for problem in failure.value.problems] == ["gpu", "model"]


def test_estimate_answers_at_once_on_a_login_node() -> None:
    """What would take the seconds is not loaded; the time itself depends on who else is on the machine."""
    heavy = ("torch", "numpy", "transformers", "vllm", "matplotlib")
    code = f"import sys; from megatron_rl.cli.main import main; main({CALL}); print([n for n in {heavy} if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
