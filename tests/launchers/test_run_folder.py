from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from launchers.environment import OutsideLaunch
from launchers.run_folder import agree_on_run_folder, create_run_folder
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import read_run_config


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return compose(["experiment=tiny_cpu", f"trainer.output_dir={tmp_path}"])


def test_create_run_folder_makes_two_folders_in_the_same_second(config: RunConfig) -> None:
    moment = datetime(2026, 1, 1, 12, 0, 0)
    first, second = create_run_folder(config, moment), create_run_folder(config, moment)
    assert first != second
    assert first.name.startswith("20260101-120000-")
    assert (first.parent / "latest").readlink().name == second.name
    assert read_run_config(first) == config


def test_create_run_folder_rejects_unwritable_place(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"trainer\.output_dir"):
        create_run_folder(compose([f"trainer.output_dir={tmp_path}/file"]))


def test_agree_on_run_folder_is_invariant_to_order(config: RunConfig) -> None:
    """Late and early ranks of one attempt find one folder; the next attempt of the same job has another."""
    with ThreadPoolExecutor(4) as pool:
        for attempt in ("a", "b"):
            ranks = [OutsideLaunch(rank=rank, world_size=4, attempt=attempt) for rank in (3, 1, 0, 2)]
            folders = set(pool.map(lambda launch: agree_on_run_folder(config, launch), ranks))
            assert len(folders) == 1
    assert len([path for path in folders.pop().parent.glob("2*")]) == 2


def test_agree_on_run_folder_rejects_missing_rank_0(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="one folder that all nodes share"):
        agree_on_run_folder(config, OutsideLaunch(rank=1, world_size=2, attempt="a"), timeout_s=0.1)


def test_agree_on_run_folder_rejects_other_overrides(config: RunConfig) -> None:
    agree_on_run_folder(config, OutsideLaunch(rank=0, world_size=2, attempt="a"))
    other = config.model_copy(update={"rollout": config.rollout.model_copy(update={"n": 5})})
    with pytest.raises(ConfigError, match="other overrides than rank 0"):
        agree_on_run_folder(other, OutsideLaunch(rank=1, world_size=2, attempt="a"))
