"""From ``reward.function`` to something that scores. Free of torch, so that a configuration is checked in a blink."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from megatron_rl.config.reward_signature import ARGUMENTS
from megatron_rl.rewards.reward import BaseRewardModel, RewardSample


class FunctionReward(BaseRewardModel):
    """A plain function ``(prompt, response, answer, row, **kwargs) -> float`` behind the class interface."""

    def __init__(self, function: Callable[..., float | None], kwargs: Mapping[str, Any]) -> None:
        """Score with ``function``; ``kwargs`` are passed to every call."""
        self._function = function
        self._kwargs = dict(kwargs)

    def forward(self, sample: RewardSample) -> float | None:
        """Call the function with keyword arguments."""
        return self._function(
            prompt=sample.prompt, response=sample.response, answer=sample.answer, row=sample.row, **self._kwargs
        )


def _module_of_file(file: Path) -> ModuleType:
    name = f"megatron_rl_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"no loader for {file}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling and dataclasses look the module up by name
    spec.loader.exec_module(module)
    return module


def load_object(spec: str, key: str) -> Any:
    """Import what a user names in the configuration.

    Args:
        spec: ``module:name`` or ``path/file.py:name``.
        key: Dotted configuration key of ``spec``, for messages.

    Raises:
        ValueError: It cannot be imported (says what the import raised) or does not exist.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(f"{key}={spec!r}: write module:function or path/file.py:function.")
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"{key}={spec!r}: there is no file {place} (looked in {Path.cwd()}).")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise ValueError(f"{key}={spec!r}: importing {place} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{key}={spec!r}: {place} has no {name!r}.")
    return getattr(module, name)


def absolute_spec(spec: str) -> str:
    """Return the spec with a file path made absolute, so that it means the same in any working directory."""
    place, _, name = spec.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else spec


def load_reward(spec: str, kwargs: Mapping[str, Any]) -> BaseRewardModel:
    """Import a reward and check that it can be called.

    Args:
        spec: ``module:name`` or ``file.py:name`` of a function or a :class:`BaseRewardModel` subclass.
        kwargs: ``reward.function_kwargs``.

    Raises:
        ValueError: It cannot be imported, is not callable, or does not take the arguments.
    """
    target = load_object(spec, "reward.function")
    if not callable(target):
        raise ValueError(f"reward.function={spec!r} is a {type(target).__name__}, not a function or reward class.")
    is_class = inspect.isclass(target)
    if is_class and not issubclass(target, BaseRewardModel):
        raise ValueError(f"reward.function={spec!r} is a class that does not derive from BaseRewardModel.")
    arguments = dict(kwargs) if is_class else dict.fromkeys(ARGUMENTS) | dict(kwargs)
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        expected = "reward.function_kwargs" if is_class else "(prompt, response, answer, row) and reward.function_kwargs"
        raise ValueError(f"reward.function={spec!r} does not take {expected}: {error}.") from error
    if not is_class:
        return FunctionReward(target, kwargs)
    try:
        reward: BaseRewardModel = target(**kwargs)
    except Exception as error:
        raise ValueError(f"reward.function={spec!r}: constructing it failed: {type(error).__name__}: {error}") from error
    return reward
