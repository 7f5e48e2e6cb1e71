"""What a job is about to cost, in its log."""

from __future__ import annotations

import pytest

from launchers.plan_summary import plan_summary
from launchers.submit import resolve_world
from megatron_rl.cli.compose import compose_run


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        ((), "cost: at most 32.0 rank hours until the time limit of 2.00 h"),
        (
            ("launcher.price_per_hour=2.5",),
            "cost: at most 32.0 rank hours, 80.00 USD at 2.5 an hour, until the time limit of 2.00 h",
        ),
    ],
)
def test_time_limit_bounds_hours_and_money(price: tuple[str, ...], cost: str) -> None:
    overrides = ["launcher=slurm", "launcher.time_limit=2:00:00", "trainer.nnodes=2", "trainer.n_gpus_per_node=8"]
    given = [
        "trainer.device=cpu",
        "trainer.save_freq=1",
        "experiment=tiny_cpu",
        "data=spell_backward",
        "actor.parallel.tensor=1",
    ]
    config = compose_run([*given, *overrides, *price, "data.train_batch_size=16"])
    assert cost in plan_summary("sft", resolve_world("train", config, runs_here=False)).splitlines()
