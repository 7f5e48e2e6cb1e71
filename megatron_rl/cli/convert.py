"""``megatron-rl convert``: Hugging Face safetensors to Megatron distributed checkpoint or back; GGUF to either."""

from __future__ import annotations

from pathlib import Path

from launchers.submit import launch_task
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.tools import ConvertConfig
from megatron_rl.training.manifest import MANIFEST, Manifest
from megatron_rl.weights.gguf import SUFFIX, gguf_problem, gguf_to_hf

_HF_FOLDER = "huggingface"
"""Inside the target of GGUF to Megatron: config and tokenizer of the checkpoint, for ``model.path``."""


def run(argv: list[str]) -> int:
    """Convert; the shape comes from the source. Returns the exit code of the ranks."""
    argv = _without_gguf_option(argv)
    settings = compose_run(argv).convert
    source = _checked_source(settings)
    if source.suffix == SUFFIX:
        source = _dequantised(source, settings)
        if settings.to == "huggingface":
            return 0
    if settings.to == "megatron":
        return launch_task("convert", _with_source(compose_run([*argv, f"model.path='{source}'"]), source))
    config = compose_run(argv)
    shape = _stored_shape(source, config.model)
    return launch_task("convert", _with_source(config.model_copy(update={"model": shape}), source))


def _without_gguf_option(argv: list[str]) -> list[str]:
    """``--gguf FILE`` spelt as overrides, ahead of all others: a Hugging Face folder unless ``convert.to`` says otherwise.

    Short forms ``target=`` and ``to=`` are understood beside it.
    """
    if "--gguf" not in argv:
        return argv
    at = argv.index("--gguf")
    if at + 1 == len(argv) or "=" in argv[at + 1]:
        raise ConfigError(["--gguf: name the file, as in --gguf model.gguf target=FOLDER"])
    rest = [f"convert.{word}" if word.startswith(("target=", "to=")) else word for word in argv[:at] + argv[at + 2 :]]
    return [f"convert.source='{argv[at + 1]}'", "convert.to=huggingface", *rest]


def _dequantised(source: Path, settings: ConvertConfig) -> Path:
    """The Hugging Face folder made of a GGUF file: the target, or a folder inside it where Megatron's format is wanted."""
    target = Path(str(settings.target)).absolute()
    folder = target if settings.to == "huggingface" else target / _HF_FOLDER
    print(f"{source}: dequantising into {folder} (minutes for gigabytes)", flush=True)
    try:
        gguf_to_hf(source, folder)
    except ValueError as failure:
        raise ConfigError([str(failure)]) from failure
    print(f"Hugging Face folder: {folder}")
    return folder


def _checked_source(settings: ConvertConfig) -> Path:
    """What to read, as an absolute path; raises ConfigError naming every key that is missing or wrong."""
    problems = [f"convert.{name} is null: name a folder" for name in ("source", "target") if getattr(settings, name) is None]
    if problems:
        raise ConfigError(problems)
    source, target = Path(str(settings.source)).absolute(), Path(str(settings.target)).absolute()
    if target.exists():
        problems.append(f"convert.target={target} exists; name a folder that does not")
    is_gguf = source.suffix == SUFFIX and not source.is_dir()
    if is_gguf:
        problems += filter(None, [gguf_problem(source)])
    elif not source.is_dir():
        problems.append(f"convert.source={source}: no such folder")
    elif settings.to == "megatron" and not (source / "config.json").is_file():
        problems.append(f"convert.source={source} has no config.json: it is no Hugging Face folder")
    if problems:
        raise ConfigError(problems)
    return source if is_gguf or settings.to == "megatron" else _newest_step(source)


def _newest_step(source: Path) -> Path:
    """The checkpoint itself, or the newest complete one in a folder of checkpoints."""
    candidates = [source, *sorted(source.glob("step_*"), reverse=True)]
    for folder in candidates:
        if (folder / MANIFEST).is_file():
            return folder
    raise ConfigError([f"convert.source={source}: neither it nor a step_* folder below it has a {MANIFEST}"])


def _stored_shape(folder: Path, model: ModelConfig) -> ModelConfig:
    """The shape the checkpoint was saved with, under the configured name and tokenizer."""
    try:
        manifest = Manifest.read(folder)
    except ValueError as failure:
        raise ConfigError([f"convert.source={folder}: {failure}"]) from None
    if "actor" not in manifest.roles:
        raise ConfigError([f"convert.source={folder} holds {', '.join(manifest.roles)} but no actor"])
    kept = {"name": model.name, "tokenizer_path": model.tokenizer_path, "chat_template": model.chat_template}
    return ModelConfig.model_validate({**dict(manifest.roles["actor"]["model"]), **kept})  # type: ignore[call-overload]


def _with_source(config: RunConfig, source: Path) -> RunConfig:
    target = Path(str(config.convert.target)).absolute()
    places = {"source": str(source), "target": str(target)}
    return config.model_copy(update={"convert": config.convert.model_copy(update=places)})
