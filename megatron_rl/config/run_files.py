"""Where a run's files lie, and the resolved configuration among them.

``output_dir/project_name/experiment_name/`` holds one folder per attempt, the symlink ``latest``, and ``checkpoints/``,
which all attempts share so that resuming by name finds what an earlier one saved.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.config.run import RunConfig

CONFIG_JSON = "config.json"
CONFIG_YAML = "config.yaml"
METRICS_FILE = "metrics.jsonl"
"""One object a step."""
SAMPLES_FILE = "samples.jsonl"
"""A few responses of each step, one object each."""
HF_FOLDER = "hf_checkpoint"
"""The exported model."""
LATEST = "latest"
"""Link in the experiment's folder to its newest attempt."""


def experiment_dir(config: RunConfig) -> Path:
    """Folder of the experiment, absolute."""
    trainer = config.trainer
    return (Path(trainer.output_dir) / trainer.project_name / trainer.experiment_name).absolute()


def checkpoints_dir(config: RunConfig) -> Path:
    """Folder of the experiment's checkpoints, shared by its attempts."""
    return experiment_dir(config) / "checkpoints"


def to_yaml(config: RunConfig) -> str:
    """The configuration as YAML in schema order."""
    return str(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))


def write_run_config(config: RunConfig, run_dir: Path) -> None:
    """Write the configuration for people (YAML) and for programs (JSON); each appears whole or not at all."""
    for name, text in ((CONFIG_YAML, to_yaml(config)), (CONFIG_JSON, config.model_dump_json(indent=2) + "\n")):
        write_atomically(run_dir / name, text)


def read_run_config(run_dir: Path) -> RunConfig:
    """Configuration that :func:`write_run_config` left in a run folder."""
    return RunConfig.model_validate_json((Path(run_dir) / CONFIG_JSON).read_text())
