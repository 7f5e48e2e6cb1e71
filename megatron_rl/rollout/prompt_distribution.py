"""Which engine answers which prompt."""

from __future__ import annotations

from collections.abc import Sequence


def distribute_prompts(lengths: Sequence[int], num_engines: int) -> list[list[int]]:
    """Give each engine a share of the prompts: counts differ by at most one, prompt tokens are balanced greedily.

    Longest prompt first, each to the engine with the fewest prompt tokens among those with room left. All samples of
    a prompt stay on one engine, where they share its prefix. Pure and deterministic, so all ranks agree.

    Args:
        lengths: P prompt lengths, tokens.
        num_engines: at least 1; engines beyond P stay idle.

    Returns one ascending list of prompt indices per engine; together each index once.
    """
    assert num_engines >= 1
    full, larger = divmod(len(lengths), num_engines)
    room = [full + (engine < larger) for engine in range(num_engines)]
    loads = [0] * num_engines
    shares: list[list[int]] = [[] for _ in range(num_engines)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        engine = min((e for e in range(num_engines) if len(shares[e]) < room[e]), key=lambda e: (loads[e], e))
        shares[engine].append(index)
        loads[engine] += lengths[index]
    return [sorted(share) for share in shares]
