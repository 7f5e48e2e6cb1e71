from __future__ import annotations

from omegaconf import OmegaConf

from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import checkpoints_dir, experiment_dir, read_run_config, write_run_config


def test_run_config_roundtrips(tmp_path) -> None:
    config = compose(["experiment=tiny_cpu", "algorithm=ppo", "model=deepseek_v3", 'trainer.project_name="é, x=1"'])
    write_run_config(config, tmp_path)
    assert read_run_config(tmp_path) == config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "config.yaml"]


def test_written_yaml_composes_to_the_same_configuration(tmp_path) -> None:
    config = compose(["experiment=tiny_cpu"])
    write_run_config(config, tmp_path)
    assert RunConfig.model_validate(OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))) == config


def test_checkpoints_dir_is_shared_by_all_attempts_of_an_experiment(tmp_path) -> None:
    config = compose([f"trainer.output_dir={tmp_path}", "trainer.project_name=p", "trainer.experiment_name=e"])
    assert experiment_dir(config) == tmp_path / "p" / "e"
    assert checkpoints_dir(config) == tmp_path / "p" / "e" / "checkpoints"
