"""Overrides -> Hydra -> plain container -> typed configuration. The only module that imports Hydra below ``cli``.

Every failure is a :class:`ConfigError` with a message for the person who typed the override. Keys are checked against
the schema before Hydra sees them, so a misspelt key gets its nearest neighbour, with or without a leading ``+``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from megatron_rl.config import typing_errors
from megatron_rl.config.checkpoint_shape import apply_checkpoint_shape
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.schema import SchemaKey, all_keys
from megatron_rl.config.spelling import nearest_choice

ShapeReader = Callable[[Path], ModelConfig]
"""Folder of a Hugging Face checkpoint -> the shape its config.json describes."""

CONFIG_PACKAGE = "hydra_conf"
PACKAGE_PATH = "pkg://"
SEARCH_PATH = "hydra.searchpath"


def group_choices() -> dict[str, list[str]]:
    """Group -> choices shipped in ``hydra_conf``."""
    import hydra_conf

    root = Path(hydra_conf.__path__[0])
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("_"))
    return {folder.name: _choices(folder) for folder in folders}


def _choices(folder: Path) -> list[str]:
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    return [name for name in names if name != "base"]


def compose(overrides: Sequence[str], read_shape: ShapeReader | None = None) -> RunConfig:
    """Typed configuration of ``overrides`` such as ``["algorithm=grpo", "actor.parallel.tensor=2"]``.

    Args:
        overrides: Hydra overrides, from the command line.
        read_shape: where given and ``model.path`` is a checkpoint folder, the model's shape comes from its config.json.

    Raises:
        ConfigError: every spelling, grammar and type problem found at the stage that failed.
    """
    keys = all_keys()
    parsed = _parse(overrides)
    container = _compose_container(_checked(parsed, keys))
    container["model"]["tokenizer_path"] = _packaged(container["model"].get("tokenizer_path"))
    if read_shape is not None:
        explicit = {override.key_or_group: override.value() for override in parsed}
        apply_checkpoint_shape(container, explicit, read_shape)
    try:
        return RunConfig.model_validate(container)
    except ValidationError as failure:
        raise ConfigError(typing_errors.messages(failure, keys)) from None


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
        if text.startswith("-"):
            advice = (
                "to check without running: megatron-rl check" if text.startswith("--dry") else "everything else is key=value"
            )
            problems.append(f"{text}: no such option; options are --cfg job and --help; {advice}")
            continue
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as failure:
            problems.append(_grammar_problem(text, str(failure).splitlines()[0]))
    if problems:
        raise ConfigError(problems)
    return parsed


def _quoted(text: str) -> str:
    """The override with its value in quotes that survive the shell."""
    key, _, value = text.partition("=")
    value = value.strip("'\"").replace('"', '\\"')
    return f"'{key}=\"{value}\"'"


def _grammar_problem(text: str, reason: str) -> str:
    if "=" not in text:
        return f"{text}: an override is key=value"
    key, _, value = text.partition("=")
    if value.startswith("["):
        return (
            f"{key}: cannot read the list {value} ({reason}); items with '=', ',', ':', spaces or non-ASCII letters need "
            f'quotes of their own, the whole in single quotes: \'{key}=["first","second"]\''
        )
    return (
        f"{key}: cannot read the value {value} ({reason}); a value with '=', ',', brackets or non-ASCII letters needs "
        f"quotes that the shell leaves in place: {_quoted(text)}"
    )


def _checked(parsed: list[Override], keys: dict[str, SchemaKey]) -> list[str]:
    """Overrides that name known groups, choices and keys, rewritten so that Hydra sets or adds each."""
    groups = group_choices()
    own_folders = any(override.key_or_group == SEARCH_PATH for override in parsed)
    problems, rewritten = [], []
    for override in parsed:
        problem = _problem(override, groups, keys, own_folders)
        if problem:
            problems.append(problem)
        if override.value() is not None or override.key_or_group not in groups:
            rewritten.append(_rewritten(override, groups))
    if problems:
        raise ConfigError(problems)
    return rewritten


def _problem(override: Override, groups: dict[str, list[str]], keys: dict[str, SchemaKey], own_folders: bool) -> str | None:
    key, text = override.key_or_group, str(override.input_line)
    if override.is_sweep_override():
        return f"{key}: one run takes one value; a text with a comma needs quotes, {_quoted(text)}, and a list brackets"
    if key == SEARCH_PATH:
        return None
    if key in groups:
        return None if own_folders else _choice_problem(override, groups[key])
    if key in keys or any(keys[parent].is_free for parent in _parents(key) if parent in keys):
        return None
    return typing_errors.unknown_key(key, keys)


def _choice_problem(override: Override, choices: list[str]) -> str | None:
    group, value = override.key_or_group, override.value()
    if override.type == OverrideType.DEL:
        return f"{group}: a group cannot be removed"
    if value in choices or (group == "experiment" and value is None):
        return None
    close = nearest_choice(str(value), choices)
    advice = f" (did you mean {close}?)" if close else ""
    return f"{group}={value}: no such choice{advice}; {group} is one of: {', '.join(choices)}"


def _packaged(path: Any) -> Any:
    """``pkg://module/name`` -> that file or folder inside the installed package; anything else unchanged."""
    if not isinstance(path, str) or not path.startswith(PACKAGE_PATH):
        return path
    package, _, name = path.removeprefix(PACKAGE_PATH).partition("/")
    return str(files(package) / name)


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _rewritten(override: Override, groups: dict[str, list[str]]) -> str:
    text = str(override.input_line)
    if override.type == OverrideType.DEL or override.key_or_group == SEARCH_PATH:
        return text
    bare = text.lstrip("+")
    return bare if override.key_or_group in groups else f"++{bare}"


def _compose_container(overrides: list[str]) -> dict[str, Any]:
    try:
        with initialize_config_module(CONFIG_PACKAGE, job_name="megatron_rl", version_base="1.3"):
            composed = hydra_compose("config", overrides)
        container = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as failure:
        raise ConfigError([_first_lines(failure)]) from None
    assert isinstance(container, dict), "the root of the configuration is a mapping"
    return {str(name): value for name, value in container.items()}


def _first_lines(failure: HydraException | OmegaConfBaseException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    if isinstance(failure, OmegaConfBaseException) and failure.full_key:
        return f"{failure.full_key}: {lines[0]}"
    if failure.__cause__ is not None:
        lines += str(failure.__cause__).splitlines()[:1]
    return "; ".join(dict.fromkeys(lines[:3]))
