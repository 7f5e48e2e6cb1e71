from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from megatron_rl.cli.launch import run
from megatron_rl.cli.main import main
from megatron_rl.config.errors import ConfigError

SWEEP = Path(__file__).parents[2] / "examples" / "sweeps" / "rollout_grid.yaml"


@pytest.mark.parametrize("words", [["--config", str(SWEEP)], [f"--config={SWEEP}"]], ids=["apart", "joined"])
def test_run_hands_a_sweep_file_on(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--dry-run", f"trainer.output_dir={tmp_path}"]) == 0
    assert "sweep of 4 points" in capsys.readouterr().out


def test_run_rejects_config_without_a_file() -> None:
    with pytest.raises(ConfigError, match="name a sweep file"):
        run(["--config"])


def test_run_rejects_a_misspelt_size() -> None:
    with pytest.raises(ConfigError, match=r"nods: no such key; did you mean nodes\?"):
        run(["nods=2", "experiment=tiny_cpu", "--dry-run"])


def test_run_rejects_a_misspelt_option() -> None:
    with pytest.raises(ConfigError, match=r"--dryrun: no such option; did you mean --dry-run\?"):
        run(["--dryrun", "experiment=tiny_cpu"])


@pytest.mark.parametrize("words", [["--task", "eval"], ["--task=eval"]], ids=["apart", "joined"])
def test_run_rejects_an_unknown_task(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--task=eval: no such task; tasks are train, sft, generate"):
        run([*words, "experiment=tiny_cpu"])


def test_launch_shows_the_configuration_of_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "launcher=torchrun", "nodes=2", "gpus_per_node=4", "--cfg", "job"]) == 0
    trainer = yaml.safe_load(capsys.readouterr().out)["trainer"]
    assert (trainer["nnodes"], trainer["n_gpus_per_node"]) == (2, 4)


def test_launch_help_names_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--dry-run", "--task", "--config", "nodes=N", "gpus_per_node=N"))
