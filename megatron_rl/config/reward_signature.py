"""Whether ``reward.function`` can be called as configured, read from its source: nothing is imported or run."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from megatron_rl.config.data import RewardConfig
from megatron_rl.config.spelling import nearest_choice

ARGUMENTS = ("prompt", "response", "answer", "row")
"""Names by which a reward function is called."""


def reward_problem(reward: RewardConfig) -> str | None:
    """Message about an unusable reward function; None where nothing speaks against it."""
    key = f"reward.function={reward.function}"
    place, _, name = reward.function.rpartition(":")
    if not place or not name.isidentifier():
        return f"{key}: write module:function or path/to/file.py:function"
    source = Path(place) if place.endswith(".py") else _module_file(place)
    if source is None or not source.is_file():
        where = "no such file" if place.endswith(".py") else f"no module {place} on Python's path"
        return f"{key}: {where}"
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as failure:
        return f"{key}: {source} is not valid Python ({failure})"
    names = _top_level_names(tree)
    if name not in names:
        close = nearest_choice(name, names)
        return f"{key}: {source} has no {name}" + (f"; did you mean {close}?" if close else "")
    function = names[name]
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return _signature_problem(key, function, reward)
    return None


def _module_file(module: str) -> Path | None:
    """Source file of a module, found without importing it or its parents; the working folder counts, as under torchrun."""
    top, *below = module.split(".")
    for folder in [Path(top), *_package_folders(top)]:
        place = folder.joinpath(*below)
        for candidate in (place / "__init__.py", place.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def _package_folders(top: str) -> list[Path]:
    """Folders of a top-level package, or where a top-level module's file would be its ``.py`` twin."""
    try:
        spec = find_spec(top)
    except ValueError:  # a module that was loaded without a spec, such as __main__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin).with_suffix("")] if spec.origin else []


def _top_level_names(tree: ast.Module) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            names.update((target.id, statement) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update(((alias.asname or alias.name), statement) for alias in statement.names)
    return names


def _signature_problem(key: str, function: ast.FunctionDef | ast.AsyncFunctionDef, reward: RewardConfig) -> str | None:
    if isinstance(function, ast.AsyncFunctionDef):
        return f"{key}: is async; a reward is a plain function that returns a number"
    arguments = function.args
    accepted = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    if arguments.kwarg is None:
        for name in (*ARGUMENTS, *reward.function_kwargs):
            if name not in accepted:
                wanted = "reward.function_kwargs gives" if name in reward.function_kwargs else "it is called with"
                return f"{key}: takes ({', '.join(accepted)}), but {wanted} {name}"
    positional = arguments.args[: len(arguments.args) - len(arguments.defaults)]
    optional = {a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    required = [a.arg for a in (*positional, *arguments.kwonlyargs) if a.arg not in optional]
    unfilled = [name for name in required if name not in ARGUMENTS and name not in reward.function_kwargs]
    if unfilled:
        return f"{key}: needs {', '.join(unfilled)}; give them in reward.function_kwargs"
    return None
