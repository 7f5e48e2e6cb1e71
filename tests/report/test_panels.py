from __future__ import annotations

from megatron_rl.report.panels import groups_for

METRICS = ["memory/gen_gib", "memory/update_actor_gib", "perf/cpu_memory_used_gb", "memory_after/gen_gib"]


def memory_panels(num_runs: int) -> list[tuple[str, list[str]]]:
    (group,) = [group for group in groups_for(METRICS, num_runs) if group.name == "memory"]
    return [(panel.title, [name for name, _ in panel.lines]) for panel in group.panels]


def test_memory_of_one_run_is_drawn_by_phase() -> None:
    assert memory_panels(1) == [
        ("Memory by phase", ["memory/gen_gib", "memory/update_actor_gib"]),
        ("Peak of a step", ["perf/cpu_memory_used_gb"]),
    ]


def test_memory_of_several_runs_is_their_peak() -> None:
    assert memory_panels(2) == [("Peak of a step", ["perf/cpu_memory_used_gb"])]
