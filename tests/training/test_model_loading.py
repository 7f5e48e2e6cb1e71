"""How roles are built from the configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megatron_rl.config.loading import compose
from megatron_rl.training import model_loading


def test_reference_is_cut_like_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["algorithm=grpo", "actor.use_kl_loss=true", "actor.ppo_max_token_len_per_gpu=2048"])
    built: list[Any] = []

    def build_role(job: Any, layout: Any, role_config: Any, *, frozen: bool, **_: Any) -> None:
        built.append((role_config, frozen))

    monkeypatch.setattr(model_loading, "build_role", build_role)
    job: Any = SimpleNamespace(config=config, layout=lambda parallel: parallel)
    model_loading.build_reference(job)
    assert built == [(config.actor, True)]
