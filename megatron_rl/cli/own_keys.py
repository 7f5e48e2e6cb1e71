"""A command's own keys and options, told apart from the configuration's on one command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast, get_args

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import group_choices
from megatron_rl.config.schema import all_keys
from megatron_rl.config.spelling import nearest_choice, nearest_key
from megatron_rl.config.world import Task

TASK = "--task"


def split_own_keys(
    arguments: Sequence[str], own: Collection[str], options: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Values of the command's own keys, and everything else as it was typed.

    Dotted keys and groups are left to the configuration's own check, which explains what is wrong with them.

    Args:
        arguments: what was typed, the command's options already taken out.
        own: the command's own keys.
        options: its options, to be named where a word looks like one.

    Raises:
        ConfigError: every key without a dot that is neither, and every word that looks like an option, with the nearest one.
    """
    groups, found, rest, problems = group_choices(), {}, [], []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in own and equals:
            found[key] = value
        elif key.startswith("-") and options:
            close = nearest_choice(key, (*options, *own))
            advice = f"did you mean {close}?" if close else f"options are {', '.join(options)}"
            problems.append(f"{key}: no such option; {advice}")
        elif equals and "." not in key and key.lstrip("+~") not in groups:
            close = nearest_choice(key, (*own, *groups)) or nearest_key(key, all_keys())
            advice = f"did you mean {close}?" if close else f"the command's own keys are {', '.join(own)}"
            problems.append(f"{key}: no such key; {advice}")
        else:
            rest.append(argument)
    if problems:
        raise ConfigError(problems)
    return found, rest


def take_option(option: str, argv: Sequence[str], wanted: str) -> tuple[str | None, list[str]]:
    """The value of ``--option VALUE`` or ``--option=VALUE``, None where it is absent, and the other arguments.

    Raises:
        ConfigError: the option without a value, saying what is ``wanted``.
    """
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name != option:
            continue
        taken = argv[index + 1 : index + 2] if not equals else [value]
        if not taken or not taken[0]:
            raise ConfigError([f"{option}: name {wanted}"])
        return taken[0], [*argv[:index], *argv[index + (1 if equals else 2) :]]
    return None, list(argv)


def take_flag(flag: str, argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether ``--flag`` is among the arguments, and the others."""
    return flag in argv, [argument for argument in argv if argument != flag]


def take_task(argv: Sequence[str]) -> tuple[Task, list[str]]:
    """The task of ``--task``, train without it, and the other arguments.

    Raises:
        ConfigError: there is no such task.
    """
    named, rest = take_option(TASK, argv, "a task, for example --task=sft")
    task = named or "train"
    if task not in get_args(Task):
        raise ConfigError([f"{TASK}={task}: no such task; tasks are {', '.join(get_args(Task))}"])
    return cast(Task, task), rest
