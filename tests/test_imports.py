"""The architecture as a test: which package may import which, what stays free of torch, what no file may be called.

Everything is read from source; nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("megatron_rl", "kernels", "launchers", "hydra_conf")
MAX_LINES = 400

LAYERS = {
    "config": 0,
    "types": 1,
    "weights": 2,
    "parallel": 3,
    "algorithms": 3,
    "ops": 3,
    "runtime": 3,
    "estimator": 4,
    "models": 4,
    "rollout": 4,
    "resharding": 4,
    "rewards": 4,
    "data": 4,
    "observability": 4,
    "training": 5,
    "report": 5,
    "sweep": 5,
    "launchers": 5,
    "cli": 6,
}
"""Layer of each package; a package imports only from lower layers and from itself."""
FOUNDATIONS = ("megatron_rl.resharding.spec",)
"""Modules that any layer above ``config`` may import: the language of fragments."""
PEER_IMPORTS = {
    *(("estimator", f"resharding.{module}") for module in ("placement", "fan_out")),
    # The learning curve of a resumed run joins its attempts as the report does.
    ("training", "report.run"),
}
"""(package, module) pairs allowed although both lie in one layer."""

CONFINED = {
    "hydra": ("megatron_rl/config/loading.py", "megatron_rl/cli/"),
    "omegaconf": ("megatron_rl/config/loading.py", "megatron_rl/cli/"),
    "vllm": ("megatron_rl/rollout/", "megatron_rl/resharding/vllm_layout.py"),
    "megatron.core": (
        "megatron_rl/models/",
        "megatron_rl/parallel/groups.py",
        "megatron_rl/resharding/megatron_layout.py",
        "megatron_rl/training/",
        "megatron_rl/runtime/cpu.py",
    ),
    "triton": ("kernels/",),
    "wandb": ("megatron_rl/observability/",),
    "kernels": ("kernels/", "megatron_rl/ops.py"),
}
"""Module -> path prefixes of the only files that may import it."""

TORCH_FREE = (
    "megatron_rl/__init__.py",
    "megatron_rl/config/",
    "megatron_rl/estimator/",
    "megatron_rl/report/",
    "megatron_rl/sweep/",
    "megatron_rl/parallel/layout.py",
    "megatron_rl/parallel/rank_order.py",
    "megatron_rl/parallel/from_config.py",
    "megatron_rl/resharding/spec.py",
    "megatron_rl/resharding/placement.py",
    "megatron_rl/resharding/planner.py",
    "megatron_rl/weights/names.py",
    "megatron_rl/cli/main.py",
    "megatron_rl/cli/check.py",
    "megatron_rl/cli/estimate.py",
    "megatron_rl/cli/estimate_tables.py",
    "megatron_rl/cli/compose.py",
    "megatron_rl/cli/report.py",
    "megatron_rl/cli/watch.py",
    "megatron_rl/cli/sweep.py",
    "megatron_rl/cli/sweep_results.py",
    "megatron_rl/cli/sweep_slurm.py",
    "megatron_rl/cli/probe.py",
    "megatron_rl/cli/probe_results.py",
    "megatron_rl/cli/worker.py",
    "megatron_rl/runtime/processes.py",
    "launchers/",
    "hydra_conf/",
)
HEAVY = ("torch", "vllm", "megatron.core", "transformers")
VAGUE_NAMES = ("utils", "util", "helpers", "helper", "common", "misc")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. Example: ``Import("megatron_rl/cli/check.py", "megatron_rl.config.run", True)``."""

    file: str
    module: str
    at_load: bool
    """Whether it runs when the file is imported, not later inside a function."""


def source_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_in(tree: ast.AST, file: str, at_load: bool = True) -> Iterator[Import]:
    """Imports of a file; those under ``if TYPE_CHECKING`` do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(file, alias.name, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield Import(file, str(node.module), at_load)
            yield from (Import(file, f"{node.module}.{alias.name}", at_load) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports_in(node, file, at_load and not inside)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for path in source_files() for found in imports_in(ast.parse(path.read_text()), name_of(path)))


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer_name(path: str) -> str:
    """Package whose layer a file or module lies in; ``ops`` and ``kernels`` count as packages."""
    parts = path.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if parts[0] == "megatron_rl" and len(parts) > 1 else parts[0]


def test_layers_import_only_downwards() -> None:
    wrong = []
    for found in all_imports():
        if not inside(found.module, "megatron_rl") and not inside(found.module, "launchers"):
            continue
        source, target = layer_name(found.file), layer_name(found.module)
        if source not in LAYERS or target not in LAYERS or source == target:
            continue
        if source != "config" and any(inside(found.module, foundation) for foundation in FOUNDATIONS):
            continue
        allowed_peer = any(source == name and inside(found.module, f"megatron_rl.{to}") for name, to in PEER_IMPORTS)
        if LAYERS[target] >= LAYERS[source] and not allowed_peer:
            wrong.append(f"{found.file} imports {found.module}")
    assert wrong == []


def test_every_package_has_a_layer() -> None:
    folders = {path.name for path in (ROOT / "megatron_rl").iterdir() if (path / "__init__.py").exists()}
    assert folders <= LAYERS.keys()


@pytest.mark.parametrize("module", CONFINED)
def test_confined_modules_stay_confined(module: str) -> None:
    allowed = CONFINED[module]
    wrong = {found.file for found in all_imports() if inside(found.module, module) and not found.file.startswith(allowed)}
    assert wrong == set()


@pytest.mark.parametrize("start", TORCH_FREE)
def test_torch_free_modules_load_no_torch(start: str) -> None:
    """Follows imports at load time through the project, from each file to whatever it reaches."""
    by_file: dict[str, list[str]] = {}
    for found in all_imports():
        if found.at_load:
            by_file.setdefault(found.file, []).append(found.module)
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in map(name_of, source_files())
    }
    queue = [(name, (name,)) for name in map(name_of, source_files()) if name.startswith(start)]
    seen = set()
    assert queue, f"nothing at {start}"
    while queue:
        file, path = queue.pop()
        if file in seen:
            continue
        seen.add(file)
        for module in by_file.get(file, []):
            assert not any(inside(module, heavy) for heavy in HEAVY), f"{' -> '.join(path)} -> {module}"
            if module in modules:
                queue.append((modules[module], (*path, modules[module])))


def test_no_file_has_a_vague_name() -> None:
    assert [name_of(path) for path in source_files() if path.stem in VAGUE_NAMES] == []


def test_no_file_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in [*source_files(), *(ROOT / "tests").rglob("*.py")]}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_import_reads_the_environment_outside_its_place() -> None:
    """``os.environ`` belongs to the launchers, the commands, and the modules that start or join processes."""
    allowed = (
        "launchers/",
        "megatron_rl/cli/",
        "megatron_rl/runtime/",
        "megatron_rl/rollout/",
        "megatron_rl/training/job.py",
        "megatron_rl/rewards/",
        "megatron_rl/observability/",
    )
    readers = {name_of(path) for path in source_files() if "os.environ" in path.read_text() or "os.getenv" in path.read_text()}
    assert {name for name in readers if not name.startswith(allowed)} == set()
