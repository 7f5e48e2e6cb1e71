"""Every key does something: its name is read as an attribute somewhere outside the schema."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from megatron_rl.config.schema import all_keys

ROOT = Path(__file__).parents[2]
SCHEMA = ("algorithm", "base", "cluster", "data", "model", "parallel", "profiler", "rollout", "run", "tools", "training")
RESERVED = {
    "algorithm.name": "for logs and tables of people who read the resolved configuration",
    "model.rope_scaling.rope_type": "one rule so far",
    "launcher.name": "one launcher so far",
    "rollout.name": "one engine so far",
}
"""Keys that nothing has to read, and why they exist."""


def attributes_read() -> set[str]:
    names: set[str] = set()
    for package in ("megatron_rl", "launchers", "kernels"):
        for path in (ROOT / package).rglob("*.py"):
            reads_schema_only = path.parent.name == "config" and path.stem in SCHEMA
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and not reads_schema_only:
                    names.add(node.attr)
                elif reads_schema_only and isinstance(node, ast.FunctionDef):  # properties of a section read its fields
                    names |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    return names


@pytest.fixture(scope="module")
def names_read() -> set[str]:
    return attributes_read()


def test_every_key_is_read_or_reserved(names_read: set[str]) -> None:
    leaves = [key for key in all_keys().values() if key.section is None]
    assert [key.dotted for key in leaves if key.name not in names_read and key.dotted not in RESERVED] == []


def test_reserved_keys_exist() -> None:
    assert set(RESERVED) <= set(all_keys())
