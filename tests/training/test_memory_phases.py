"""The order in which memory changes hands over one step, with recording stand-ins for what moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from megatron_rl.rollout.engine import MemoryTag
from megatron_rl.training.memory_phases import PHASE_NEEDS, Holding, MemoryPhases

STEP = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")


class Recorded:
    """A movable that writes down its moves."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def offload(self) -> None:
        self.log.append(f"-{self.name}")

    def load(self) -> None:
        self.log.append(f"+{self.name}")


class SleepingEngine:
    """An engine that can only sleep and wake."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def sleep(self, level: Literal[1, 2]) -> None:
        self.log.append(f"-engine {level}")

    def wake(self, tags: Sequence[MemoryTag] = ("weights", "kv_cache")) -> None:
        self.log.append(f"+engine {' '.join(tags)}")


def _holdings(log: list[str], *names: str) -> list[Holding]:
    return [Holding(name, Recorded(name, log)) for name in names]


def _moves(memory: MemoryPhases, log: list[str], phase: str) -> list[str]:
    log.clear()
    announced = memory.moves(phase)
    memory.enter(phase)
    assert announced == bool(log)
    assert not memory.moves(phase)
    return list(log)


def test_step_moves_each_holding_in_for_its_own_phases_only() -> None:
    log: list[str] = []
    names = (
        "actor gradients",
        "actor optimizer",
        "critic parameters",
        "critic gradients",
        "critic optimizer",
        "ref parameters",
    )
    memory = MemoryPhases(_holdings(log, *names))
    memory.adopt_engine(SleepingEngine(log))  # type: ignore[arg-type]
    assert _moves(memory, log, "gen") == [f"-{name}" for name in names]
    assert {phase: moved for phase in STEP[1:] if (moved := _moves(memory, log, phase))} == {
        "old_log_prob": ["-engine 2"],
        "ref": ["+ref parameters"],
        "values": ["-ref parameters", "+critic parameters"],
        "update_critic": ["+critic gradients", "+critic optimizer"],
        "update_actor": [
            "-critic parameters",
            "-critic gradients",
            "-critic optimizer",
            "+actor gradients",
            "+actor optimizer",
        ],
        "update_weights": ["-actor gradients", "-actor optimizer", "+engine weights"],
    }
    assert _moves(memory, log, "gen") == ["+engine kv_cache"]


def test_saving_brings_the_state_of_one_role_after_the_other_and_leaves_the_engine_as_it_is() -> None:
    log: list[str] = []
    memory = MemoryPhases(_holdings(log, "actor gradients", "actor optimizer", "critic parameters", "critic optimizer"))
    memory.adopt_engine(SleepingEngine(log))  # type: ignore[arg-type]
    for phase in ("gen", "update_actor", "update_weights", "save_checkpoint"):
        memory.enter(phase)
    assert _moves(memory, log, "actor state") == ["+actor optimizer"]
    assert _moves(memory, log, "critic state") == ["-actor optimizer", "+critic parameters", "+critic optimizer"]
    assert _moves(memory, log, "testing") == ["-critic parameters", "-critic optimizer", "+engine kv_cache"]
    assert _moves(memory, log, "gen") == []


def test_resuming_has_the_card_to_itself() -> None:
    log: list[str] = []
    memory = MemoryPhases()
    memory.adopt_engine(SleepingEngine(log))  # type: ignore[arg-type]
    assert _moves(memory, log, "resume") == ["-engine 2"]
    assert _moves(memory, log, "actor state") == []
    assert _moves(memory, log, "update_weights") == ["+engine weights"]
    assert _moves(memory, log, "gen") == ["+engine kv_cache"]


def test_weights_of_the_engine_survive_from_push_to_rollout() -> None:
    """A deep sleep loses them, so nothing between a push and the next rollout may put the engine to sleep."""
    log: list[str] = []
    memory = MemoryPhases()
    memory.adopt_engine(SleepingEngine(log))  # type: ignore[arg-type]
    for phase in ("gen", "update_actor"):
        memory.enter(phase)
    log.clear()
    for phase in ("update_weights", "check_replicas", "save_checkpoint", "testing", "gen"):
        memory.enter(phase)
    assert log == ["+engine weights", "+engine kv_cache"]


def test_nothing_moves_where_nothing_is_configured() -> None:
    memory = MemoryPhases()
    assert not any(memory.moves(phase) for phase in (*STEP, "save_checkpoint", "testing", "unheard_of"))


def test_adopted_holdings_leave_at_once() -> None:
    log: list[str] = []
    memory = MemoryPhases()
    memory.adopt(_holdings(log, "actor optimizer"))
    assert log == ["-actor optimizer"]
    memory.adopt(_holdings(log, "ref parameters"))
    assert log == ["-actor optimizer", "-ref parameters"]


@pytest.mark.parametrize("phase", sorted(PHASE_NEEDS))
def test_the_actors_weights_are_in_no_table(phase: str) -> None:
    """They never move, because the engine reads them in place."""
    assert "actor parameters" not in PHASE_NEEDS[phase].holdings
