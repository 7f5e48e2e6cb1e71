"""What an engine in this process must not change."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch

from megatron_rl.rollout.process_isolation import isolated_rng, preserved_process_settings


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_isolated_rng_restores_every_stream(fails: bool) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    expected = _draw()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    try:
        with isolated_rng(torch.device("cpu")):
            random.seed(0), np.random.seed(0), torch.manual_seed(0)
            _draw()
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert _draw() == expected


def test_preserved_process_settings_restores_environment_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    before = torch.set_num_threads
    with preserved_process_settings():
        os.environ.update(LOCAL_WORLD_SIZE="1", LD_PRELOAD="allocator.so")
        torch.set_num_threads = lambda threads: None
    assert os.environ["LOCAL_WORLD_SIZE"] == "4" and "LD_PRELOAD" not in os.environ
    assert torch.set_num_threads is before
