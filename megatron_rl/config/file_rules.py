"""Rules about files and code the configuration names. Looks at the file system, imports nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from megatron_rl.config.data import PROMPT_SUFFIXES, DataConfig
from megatron_rl.config.reward_signature import reward_problem
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import experiment_dir
from megatron_rl.config.spelling import nearest_choice
from megatron_rl.config.world import Task


def file_problems(config: RunConfig, task: Task) -> Iterator[str]:
    """Missing, misplaced or unreadable files of a task."""
    yield from _weight_problems(config, task)
    if task != "convert":
        yield from _tokenizer_problems(config)
    if task == "sft":
        yield from _missing_files("sft.train_files", config.sft.train_files)
        if not config.sft.train_files:
            yield "sft.train_files is empty: give JSONL or Parquet files with prompts and responses"
    elif task != "convert":
        yield from _prompt_problems(config, task)
    if task in ("train", "evaluate"):
        problem = reward_problem(config.reward)
        if problem:
            yield problem
    yield from _name_problems(config)
    yield from _output_problems(config)


def _weight_problems(config: RunConfig, task: Task) -> Iterator[str]:
    folders = {"model.path": config.model.path, "actor.load_path": config.actor.load_path}
    if task == "train" and config.uses_critic:
        folders["critic.load_path"] = config.critic.load_path
    if task == "train" and config.uses_reference:
        folders["ref.load_path"] = config.ref.load_path
    for key, folder in folders.items():
        if folder is None:
            continue
        if not Path(folder).is_dir():
            yield f"{key}={folder}: no such folder; weights are read from a local Hugging Face folder, nothing is downloaded"
        elif not (Path(folder) / "config.json").is_file():
            yield f"{key}={folder}: has no config.json, so it is no Hugging Face checkpoint"
    if config.trainer.resume_path is not None and not Path(config.trainer.resume_path).is_dir():
        yield f"trainer.resume_path={config.trainer.resume_path}: no such folder"


def _tokenizer_problems(config: RunConfig) -> Iterator[str]:
    model = config.model
    if model.tokenizer is None:
        yield (
            "model.tokenizer_path: no tokenizer; give a tokenizer folder, a tokenizer.json, a sentencepiece .model file, "
            "or a model.path that holds one"
        )
    elif model.tokenizer_path is not None and not Path(model.tokenizer_path).exists():
        yield f"model.tokenizer_path={model.tokenizer_path}: no such file or folder"
    if model.chat_template is not None and not Path(model.chat_template).is_file():
        yield f"model.chat_template={model.chat_template}: no such file"


def _prompt_problems(config: RunConfig, task: Task) -> Iterator[str]:
    data = config.data
    yield from _missing_files("data.train_files", data.train_files)
    yield from _missing_files("data.val_files", data.val_files)
    if data.reasoning_gym is not None and (data.train_files or data.val_files):
        yield "data.reasoning_gym and data.train_files/val_files are both set: prompts come from one of them"
    if task in ("generate", "evaluate") and data.reasoning_gym is None:
        split = config.generate.split if task == "generate" else "val"
        if not (data.val_files if split == "val" else data.train_files):
            yield f"data.{split}_files is empty and data.reasoning_gym is null: there is nothing to {task}"
    if task == "train":
        yield from _train_source_problems(data)
        if config.trainer.test_freq > 0 and data.reasoning_gym is None and not data.val_files:
            yield f"trainer.test_freq={config.trainer.test_freq} needs validation prompts: set data.val_files"


def _train_source_problems(data: DataConfig) -> Iterator[str]:
    if data.reasoning_gym is None and not data.train_files:
        yield "data.train_files is empty and data.reasoning_gym is null: there are no prompts; try data=spell_backward"
    gym = data.reasoning_gym
    if gym is not None and gym.train_size < data.prompts_per_gen_batch:
        yield (
            f"{data.gen_batch_key}={data.prompts_per_gen_batch} exceeds data.reasoning_gym.train_size={gym.train_size}: "
            "not one step has enough prompts"
        )


def _missing_files(key: str, files: list[str]) -> Iterator[str]:
    for name in files:
        path = Path(name)
        if not path.is_file():
            close = nearest_choice(path.name, _names_in(path.parent))
            yield f"{key}: no such file {name}" + (f"; did you mean {path.parent / close}?" if close else "")
        elif path.suffix not in PROMPT_SUFFIXES:
            yield f"{key}: {name} is neither JSONL nor Parquet ({', '.join(PROMPT_SUFFIXES)})"


def _names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _name_problems(config: RunConfig) -> Iterator[str]:
    """Project and experiment are one folder each, so that runs are found where they are looked for."""
    names = {"trainer.project_name": config.trainer.project_name, "trainer.experiment_name": config.trainer.experiment_name}
    for key, name in names.items():
        if name in ("", ".", "..") or "/" in name:
            yield f'{key}="{name}": must be the name of one folder, without a slash; trainer.output_dir says where it is'


def _output_problems(config: RunConfig) -> Iterator[str]:
    folder = experiment_dir(config)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir():
        yield f"trainer.output_dir={config.trainer.output_dir}: {existing} is a file, not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"trainer.output_dir={config.trainer.output_dir}: cannot write in {existing}"
