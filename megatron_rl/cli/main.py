"""The ``megatron-rl`` command: finds the subcommand, shows help and configurations, explains user errors.

Nothing here imports torch, so help, typos and ``--cfg job`` answer at once, also on a login node.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from megatron_rl import __version__

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Example: ``Command("megatron_rl.cli.tasks:train", "train a policy")``."""

    target: str
    """``module:function``; the function takes the remaining arguments and returns an exit code."""
    summary: str
    takes_overrides: bool = True
    """Whether its arguments are configuration overrides."""
    usage: str = "[key=value ...]"
    """Its arguments where they are none."""
    help_text: str = ""
    """``module:NAME`` of a text with every key of its own, which ``--help`` shows instead of ``usage``."""
    options: tuple[tuple[str, str], ...] = ()
    """Words of its own beside the overrides, each with what it does."""
    plain_overrides: str = ""
    """``module:function`` that turns arguments with such words into overrides."""


COMMANDS = {
    "train": Command("megatron_rl.cli.tasks:train", "train a policy with reinforcement learning"),
    "launch": Command(
        "megatron_rl.cli.launch:run",
        "check, show, then run here or submit to Slurm (--dry-run: only show)",
        options=(
            ("--dry-run", "check, show what would run, and stop"),
            ("--task TASK", "train (without it), sft, generate, evaluate"),
            ("--config FILE", "run the sweep of a YAML file instead; docs/sweeps.md"),
            ("nodes=N gpus_per_node=N", "short for trainer.nnodes and trainer.n_gpus_per_node"),
        ),
        plain_overrides="megatron_rl.cli.launch:plain_overrides",
    ),
    "check": Command("megatron_rl.cli.check:run", "validate a configuration in seconds: no torch, no GPU, no model"),
    "sft": Command("megatron_rl.cli.tasks:sft", "fine-tune on prompt/response pairs"),
    "generate": Command("megatron_rl.cli.tasks:generate", "sample answers to a data set into a JSONL file"),
    "evaluate": Command("megatron_rl.cli.tasks:evaluate", "score a policy on the validation prompts"),
    "convert": Command(
        "megatron_rl.cli.convert:run", "Hugging Face safetensors <-> Megatron checkpoint; --gguf FILE target=DIR"
    ),
    "report": Command(
        "megatron_rl.cli.report:run",
        "write runs or a sweep as one HTML page",
        takes_overrides=False,
        usage="RUN_OR_SWEEP_DIR [RUN_DIR ...] [--out FILE]",
    ),
    "watch": Command(
        "megatron_rl.cli.watch:run",
        "show a run in the terminal as it goes on",
        takes_overrides=False,
        usage="RUN_DIR [--once] [--interval SECONDS]",
    ),
    "estimate": Command(
        "megatron_rl.cli.estimate:run",
        "memory, time and money of a run, before it runs",
        takes_overrides=False,
        help_text="megatron_rl.cli.estimate:USAGE",
    ),
    "sweep": Command(
        "megatron_rl.cli.sweep:run",
        "run a scaling curve or a grid, each point its own run",
        takes_overrides=False,
        help_text="megatron_rl.cli.sweep:USAGE",
    ),
    "probe": Command(
        "megatron_rl.cli.probe:run",
        "try a few steps: memory, time, cost, verdict",
        takes_overrides=False,
        help_text="megatron_rl.cli.probe:USAGE",
    ),
    "plan": Command(
        "megatron_rl.cli.plan:run",
        "bytes, rounds and seconds of a weight transfer, before it runs",
        takes_overrides=False,
        help_text="megatron_rl.cli.plan:USAGE",
    ),
    "env": Command(
        "megatron_rl.cli.env:run",
        "what is installed here, and what each absence costs",
        takes_overrides=False,
        usage="[--json]",
    ),
    "demo": Command("megatron_rl.cli.demo:run", "watch a tiny model learn on this machine", takes_overrides=False),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 2 for what the user can mend on the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except BrokenPipeError:  # the reader of `... --cfg job | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _unknown_command(name)
    if "-h" in rest or "--help" in rest:
        print(_command_help(name))
        return 0
    return _run(COMMANDS[name], rest)


def _run(command: Command, arguments: list[str]) -> int:
    from megatron_rl.config.errors import ConfigError

    try:
        if command.takes_overrides and _asks_for_config(arguments):
            return _show_config(command, arguments)
        return int(_named(command.target)(arguments))
    except ConfigError as failure:
        print(failure.report(), file=sys.stderr)
        return EXIT_USAGE


def _named(target: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _asks_for_config(arguments: list[str]) -> bool:
    return any(argument in ("--cfg", "-c") or argument.startswith("--cfg=") for argument in arguments)


def _show_config(command: Command, arguments: list[str]) -> int:
    from megatron_rl.cli.compose import compose_run
    from megatron_rl.config.errors import ConfigError
    from megatron_rl.config.run_files import to_yaml

    overrides, kinds, rest = [], [], iter(arguments)
    for argument in rest:
        if argument in ("--cfg", "-c"):
            kinds.append(next(rest, ""))
        elif argument.startswith("--cfg="):
            kinds.append(argument.removeprefix("--cfg="))
        else:
            overrides.append(argument)
    if kinds != ["job"]:
        raise ConfigError([f"--cfg {' '.join(kinds)}: the only choice is --cfg job, the resolved configuration"])
    if command.plain_overrides:
        overrides = _named(command.plain_overrides)(overrides)
    print(to_yaml(compose_run(overrides)), end="")
    return 0


def _unknown_command(name: str) -> int:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
    advice = f"did you mean {close[0]}? " if close else ""
    print(f"error: {name}: no such command; {advice}commands are {', '.join(COMMANDS)}", file=sys.stderr)
    return EXIT_USAGE


def _overview() -> str:
    lines = [
        "megatron-rl: RL post-training of language models on Megatron-Core and in-process vLLM",
        "",
        "usage: megatron-rl COMMAND [key=value ...] [--cfg job] [--help]",
        "",
        *(f"  {name:<9} {command.summary}" for name, command in COMMANDS.items()),
        "",
        "example: megatron-rl train experiment=tiny_cpu algorithm=ppo trainer.total_training_steps=3",
    ]
    return "\n".join(lines)


def _command_help(name: str) -> str:
    command = COMMANDS[name]
    lines = [f"megatron-rl {name}: {command.summary}", ""]
    if command.help_text:
        return "\n".join([*lines, _named(command.help_text)])
    if not command.takes_overrides:
        return "\n".join([*lines, f"usage: megatron-rl {name} {command.usage}"])
    from megatron_rl.config.loading import group_choices

    lines += [
        f"usage: megatron-rl {name} [group=choice ...] [key=value ...] [OPTION ...]",
        "",
        *(f"  {word:<24} {meaning}" for word, meaning in (*command.options, ("--cfg job", "print the resolved configuration"))),
        "",
        "groups with a choice:",
    ]
    choices = group_choices()
    lines += [
        f"  {group:<11} {', '.join(names)}" for group, names in choices.items() if len(names) > 1 or group == "experiment"
    ]
    return "\n".join([*lines, "", "Every key, its type and its default: docs/configuration.md."])


if __name__ == "__main__":
    sys.exit(main())
