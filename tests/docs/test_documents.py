"""The documents tell the truth: links lead somewhere, quoted commands exist and their overrides compose."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from megatron_rl.cli.estimate import parse
from megatron_rl.cli.launch import plain_overrides
from megatron_rl.cli.main import COMMANDS
from megatron_rl.config.loading import compose

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_CONFIGURATION = {"demo", "report", "watch", "estimate", "plan", "sweep", "probe", "launch", "env"}
"""Commands with arguments of their own; their tests run them."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def quoted_commands(document: Path) -> list[list[str]]:
    """Words of every ``megatron-rl`` line in the document's code blocks."""
    lines = "\n".join(CODE_BLOCK.findall(document.read_text())).replace("\\\n", " ").splitlines()
    commands = []
    for line in lines:
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["megatron-rl"]:
            commands.append(words[1:])
    return commands


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    broken = []
    for target in LINK.findall(document.read_text()):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", place):
            continue
        file = document if not place else (document.parent / place).resolve()
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_quoted_commands_exist_and_compose(document: Path) -> None:
    for command in quoted_commands(document):
        if not command or command[0].startswith("-") or command[0] == "COMMAND":
            continue
        name, *arguments = command
        assert name in COMMANDS, f"megatron-rl {name}: no such command"
        overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("--")]
        if name not in NOT_CONFIGURATION:
            compose(overrides)
        elif name == "launch":
            compose(plain_overrides(overrides))
        elif name == "estimate" and overrides:
            parse([word for word in arguments if "=" in word or not word.startswith("-")])


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets
