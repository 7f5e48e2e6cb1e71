"""A command's own keys, told apart from the configuration's on one command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import group_choices
from megatron_rl.config.schema import all_keys
from megatron_rl.config.spelling import nearest_choice, nearest_key


def split_own_keys(arguments: Sequence[str], own: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Values of the command's own keys, and everything else as it was typed.

    Dotted keys and groups are left to the configuration's own check, which explains what is wrong with them.

    Raises:
        ConfigError: every key without a dot that is neither, with the nearest one.
    """
    groups, found, rest, problems = group_choices(), {}, [], []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in own and equals:
            found[key] = value
        elif equals and "." not in key and key.lstrip("+~") not in groups:
            close = nearest_choice(key, (*own, *groups)) or nearest_key(key, all_keys())
            advice = f"did you mean {close}?" if close else f"the command's own keys are {', '.join(own)}"
            problems.append(f"{key}: no such key; {advice}")
        else:
            rest.append(argument)
    if problems:
        raise ConfigError(problems)
    return found, rest
