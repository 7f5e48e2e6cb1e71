from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.cli.launch import run
from megatron_rl.config.errors import ConfigError

SWEEP = Path(__file__).parents[2] / "examples" / "sweeps" / "rollout_grid.yaml"


@pytest.mark.parametrize("words", [["--config", str(SWEEP)], [f"--config={SWEEP}"]], ids=["apart", "joined"])
def test_run_hands_a_sweep_file_on(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--dry-run", f"trainer.output_dir={tmp_path}"]) == 0
    assert "sweep of 4 points" in capsys.readouterr().out


def test_run_rejects_config_without_a_file() -> None:
    with pytest.raises(ConfigError, match="name a sweep file"):
        run(["--config"])
