# make help lists the targets. Every target sets up .venv by itself; ENGINE=cpu or gpu overrides what the machine suggests.
SHELL := /bin/bash
BIN := .venv/bin
ALGO ?= grpo
SEED ?= 0
PYTEST_ARGS ?= -n 2 --dist loadgroup
BENCH_ARGS ?=

PACKAGES := megatron_rl kernels launchers hydra_conf
SOURCES := $(PACKAGES) tests setup.py $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup test lint format render demo bench-gpu bench-cpu clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: ## Make .venv with Python 3.12 and the pinned requirements (returns at once when up to date)
	@bash requirements/bootstrap.sh

test: setup ## Run the tests; PYTEST_ARGS="-k name" narrows them
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup ## ruff, and mypy --strict on the packages
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy $(PACKAGES)

format: setup ## Format and fix what ruff can fix
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

render: setup ## Rewrite hydra_conf's base files, docs/configuration.md and slurm/*.sbatch from their sources
	@$(BIN)/python -m megatron_rl.config.render
	@$(BIN)/python -m launchers.slurm_presets

demo: setup ## Watch a tiny model learn on CPU; ALGO=grpo or ppo, SEED=0
	@$(BIN)/megatron-rl demo algo=$(ALGO) seed=$(SEED)

bench-gpu: setup ## Measure kernels, layers, reshard, rollout and step on this machine's GPUs; BENCH_ARGS="--only step"
	@$(BIN)/python -m benchmarks.suite gpu $(BENCH_ARGS)

bench-cpu: setup ## The same for what a machine without a GPU can measure
	@$(BIN)/python -m benchmarks.suite cpu $(BENCH_ARGS)

clean: ## Remove caches and build leftovers; .venv and outputs stay
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
