from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from megatron_rl.cli.main import COMMANDS, main


def test_main_lists_every_command(capsys) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_main_helps_with_every_command(name: str, capsys) -> None:
    assert main([name, "--help"]) == 0
    assert COMMANDS[name].summary in capsys.readouterr().out


@pytest.mark.parametrize(("name", "key"), [("estimate", "device_map"), ("sweep", "retry"), ("probe", "max_hours")])
def test_main_helps_with_every_own_key(name: str, key: str, capsys) -> None:
    assert main([name, "--help"]) == 0
    assert f"  {key}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_points_at_a_function(name: str) -> None:
    """Read from source, so that no command has to be imported."""
    module, _, function = COMMANDS[name].target.partition(":")
    source = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    assert f"def {function}(argv: list[str]) -> int:" in source.read_text()


def test_main_rejects_unknown_command_naming_the_nearest(capsys) -> None:
    assert main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_main_shows_the_resolved_configuration(capsys) -> None:
    assert main(["train", "experiment=tiny_cpu", "rollout.n=4", "--cfg", "job"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["rollout"]["n"] == 4
    assert shown["model"]["num_layers"] == 4


def test_main_rejects_other_cfg(capsys) -> None:
    assert main(["train", "--cfg", "hydra"]) == 2
    assert "--cfg job" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["train", "actor.lrr=1"], ["check", "rollout.n=true"], ["sft", "model.path=/a=b=c"], ["evaluate", "model=nope"]],
    ids=["key", "type", "grammar", "choice"],
)
def test_main_rejects_user_errors_without_a_stack_trace(arguments: list[str], capsys) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert "Traceback" not in shown


def test_console_script_answers_from_any_folder(tmp_path) -> None:
    script = Path(sys.executable).with_name("megatron-rl")
    done = subprocess.run([script, "train", "rollout.nn=2"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error: rollout.nn: no such key; did you mean rollout.n?\n")
