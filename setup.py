"""Packaging. Requirements are read from requirements/, the one place that names versions."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements(name: str) -> list[str]:
    """Requirement lines of ``requirements/<name>.txt``."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def version() -> str:
    """``__version__`` of the package, without importing it."""
    for line in (ROOT / "megatron_rl" / "__init__.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise ValueError("megatron_rl/__init__.py has no __version__")


setup(
    name="megatron-rl",
    # transformers refuses to import beside a distribution that ships a package `kernels` in [0.18.2, 0.19): stay below.
    version=version(),
    description="RL post-training of large language models on Megatron-Core and in-process vLLM",
    long_description="RL post-training of large language models on Megatron-Core and in-process vLLM, under torchrun.",
    license="Apache-2.0",
    python_requires=">=3.12,<3.13",
    packages=find_packages(include=["megatron_rl*", "kernels*", "launchers*", "hydra_conf*"]),
    package_data={
        "hydra_conf": ["*.yaml", "*/*.yaml"],
        "megatron_rl": [
            "py.typed",
            "data/assets/*/*.json",
            "estimator/data/*.json",
            "resharding/data/*.json",
            "report/assets/*",
        ],
    },
    install_requires=requirements("base"),
    extras_require={
        # The CPU engine itself installs with --no-deps (requirements/cpu-engine.txt); `make setup` does both.
        "cpu": requirements("cpu"),
        "gpu": requirements("gpu"),
        "te": requirements("te"),
        "gguf": requirements("gguf"),
        "wandb": requirements("wandb"),
        "dev": requirements("dev"),
    },
    entry_points={"console_scripts": ["megatron-rl = megatron_rl.cli.main:main"]},
)
