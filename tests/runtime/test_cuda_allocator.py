"""Allocator settings under both of their names."""

from __future__ import annotations

import pytest

from megatron_rl.runtime.cuda_allocator import settle_allocator

OLD, NEW, ON = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "expandable_segments:True"


def test_settle_allocator_shows_the_engine_what_torch_was_told() -> None:
    environ = {NEW: ON}
    said = settle_allocator(environ, engine_sleeps=True)
    assert said == f"torch's allocator: expandable segments ({NEW}); the engine's sleep pool keeps fixed ones"
    assert environ == {NEW: ON, OLD: ON}


@pytest.mark.parametrize(
    ("environ", "said"),
    [({}, "fixed segments"), ({OLD: "max_split_size_mb:64"}, "fixed segments"), ({OLD: ON}, f"expandable segments ({OLD})")],
    ids=["nothing", "other", "old-name"],
)
def test_settle_allocator_leaves_the_engines_variable_alone(environ: dict[str, str], said: str) -> None:
    before = dict(environ)
    assert settle_allocator(environ, engine_sleeps=False) == f"torch's allocator: {said}"
    assert environ == before


def test_settle_allocator_rejects_names_that_disagree() -> None:
    with pytest.raises(ValueError, match="disagree about expandable_segments: unset one"):
        settle_allocator({NEW: ON, OLD: "expandable_segments:False"}, engine_sleeps=False)


def test_settle_allocator_rejects_a_foreign_allocator_where_the_engine_sleeps() -> None:
    environ = {OLD: "backend:cudaMallocAsync"}
    with pytest.raises(ValueError, match="free_cache_engine=false"):
        settle_allocator(environ, engine_sleeps=True)
    settle_allocator(environ, engine_sleeps=False)
