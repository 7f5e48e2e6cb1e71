from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.sole_writer import sole_writer
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig


def config(folder: Path, name: str = "e") -> RunConfig:
    return compose(["experiment=tiny_cpu", f"trainer.output_dir={folder}", f"trainer.experiment_name={name}"])


def test_sole_writer_rejects_a_second_run_of_one_name(tmp_path: Path) -> None:
    with (
        sole_writer("train", config(tmp_path)),
        pytest.raises(ConfigError, match=rf"trainer\.experiment_name=e: train, process {os.getpid()} on .* is writing to"),
        sole_writer("sft", config(tmp_path)),
    ):
        pass


def test_sole_writer_lets_other_names_and_readers_in(tmp_path: Path) -> None:
    with sole_writer("train", config(tmp_path)), sole_writer("train", config(tmp_path, "f")):
        with sole_writer("evaluate", config(tmp_path)), sole_writer("generate", config(tmp_path)):
            pass


def test_sole_writer_leaves_no_debris(tmp_path: Path) -> None:
    """Neither of a run that ended, nor of one that was killed."""
    with sole_writer("train", config(tmp_path)):
        pass
    kill = (
        "import os, sys; from tests.launchers.test_sole_writer import config, sole_writer; from pathlib import Path\n"
        "with sole_writer('train', config(Path(sys.argv[1]))): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", kill, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -9
    with sole_writer("train", config(tmp_path)):
        pass


def test_sole_writer_leaves_an_unwritable_folder_to_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with sole_writer("train", config(tmp_path / "file" / "below")):
        pass
