"""Which metrics a report draws, in which panel, in which unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. Example: ``Panel("Entropy", "nats", (("actor/entropy", "entropy"),))``."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    """Metric and its label in the chart."""
    note: str = ""
    """What a healthy curve looks like."""
    log: bool = False
    """Logarithmic value axis."""
    zero: bool = False
    """The value axis begins at 0."""
    smoothed: bool = True
    """Whether the slider smooths it; what is set, not measured, is shown as it is."""


@dataclass(frozen=True, slots=True)
class PanelGroup:
    """Charts under one heading."""

    name: str
    title: str
    panels: tuple[Panel, ...]


LEARNING = PanelGroup(
    "learning",
    "Learning",
    (
        Panel("Reward", "reward", (("reward/mean", "mean"),), "rises"),
        Panel("Held-out accuracy", "share", (("val/accuracy/mean", "accuracy"),), "rises with the reward"),
        Panel("Loss on demonstrations", "nats per token", (("sft/nll_per_token", "loss"),), "falls"),
        Panel("Entropy", "nats", (("actor/entropy", "entropy"),), "falls slowly, not to 0 at once", zero=True),
        Panel("KL to the reference", "nats", (("actor/kl_loss", "in the loss"), ("actor/reward_kl_penalty", "in the reward"))),
        Panel("KL of the update", "nats", (("actor/ppo_kl", "KL"),), "|KL| < 0.05"),
        Panel("Clipped tokens", "share", (("actor/pg_clipfrac", "share"),), "< 0.2", zero=True),
        Panel("Gradient norm", "", (("actor/grad_norm", "actor"), ("grad_norm", "model")), "steady", zero=True),
        Panel(
            "Response length",
            "tokens",
            (("response_length/mean", "mean"), ("response_length/max", "longest")),
            "no drift to 0 or to the limit",
            zero=True,
        ),
        Panel("Cut responses", "share", (("response_length/clip_ratio", "share"),), "< 0.1", zero=True),
        Panel("Groups without signal", "share", (("group/frac_zero_std", "share"),), "< 0.7", zero=True),
        Panel(
            "Dynamic sampling",
            "a step",
            (("train/num_gen_batches", "gen batches"), ("group/num_filled", "groups filled up")),
            "none filled up",
            zero=True,
        ),
        Panel("Critic: explained variance", "share", (("critic/vf_explained_var", "share"),), "rises above 0.5"),
        Panel("Critic: value loss", "", (("critic/vf_loss", "loss"),), "falls", zero=True),
        Panel(
            "Learning rate", "", (("actor/lr", "actor"), ("critic/lr", "critic"), ("lr", "model")), zero=True, smoothed=False
        ),
    ),
)

SPEED = PanelGroup(
    "speed",
    "Speed",
    (
        Panel("Step time", "s", (("timing_s/step", "step"),), zero=True),
        Panel("Throughput", "tokens/s", (("perf/tokens_per_second", "prompt + response"),), zero=True),
        Panel("Generation", "tokens/s", (("perf/actor_generate_tokens_per_second", "generated"),), zero=True),
        Panel("Utilisation in the update", "share of peak", (("perf/mfu_actor", "MFU"),), zero=True),
    ),
)

MISMATCH = PanelGroup(
    "mismatch",
    "Trainer against engine",
    (
        Panel(
            "Log-prob difference",
            "nats",
            (("rollout_corr/logprob_diff_mean", "mean"), ("rollout_corr/logprob_diff_max", "max")),
            "float32: mean < 1e-4; bfloat16: steady",
            log=True,
        ),
        Panel(
            "KL, engine to trainer",
            "nats",
            (("rollout_corr/kl", "k1"), ("rollout_corr/k3_kl", "k3")),
            "near 0",
        ),
        Panel(
            "Probability ratio",
            "trainer / engine",
            (("rollout_corr/ratio_p01", "1 %"), ("rollout_corr/ratio_p99", "99 %"), ("rollout_corr/ratio_max", "max")),
            "near 1",
        ),
        Panel(
            "Perplexity",
            "",
            (("rollout_corr/training_ppl", "trainer"), ("rollout_corr/rollout_ppl", "engine")),
            "equal",
        ),
        Panel(
            "Effective sample size",
            "share",
            (("rollout_corr/rollout_is_eff_sample_size", "share"),),
            "> 0.9",
        ),
    ),
)

SYNC = PanelGroup(
    "sync",
    "Weight sync",
    (
        Panel(
            "Bytes received",
            "bytes",
            (("sync/bytes_received", "received"), ("sync/bound_bytes", "lower bound")),
            "on the bound",
            zero=True,
            smoothed=False,
        ),
        Panel(
            "Staging memory",
            "bytes",
            (("sync/peak_extra_bytes", "most at once"),),
            "<= weight_sync.budget_mib",
            zero=True,
            smoothed=False,
        ),
        Panel("Transfer time", "s", (("sync/seconds", "transfer"),), zero=True),
    ),
)

MEMORY_PREFIX = "memory/"
_HEALTHY = "below the card's memory"
_MEMORY_UNITS = (("_gib", "GiB"), ("_mib", "MiB"), ("_bytes", "bytes"))


PEAK_MEMORY = Panel(
    "Peak of a step",
    "GiB",
    (
        ("perf/cuda_memory_allocated_gb", "allocated"),
        ("perf/cuda_memory_reserved_gb", "reserved"),
        ("perf/cpu_memory_used_gb", "on the host"),
    ),
    "flat, below the card's memory",
    zero=True,
)


def memory_phases(metrics: Iterable[str]) -> list[tuple[str, str, str]]:
    """Metric, phase and unit of each ``memory/<phase>_gib``, ``_mib`` or ``_bytes``."""
    return [
        (name, name.removeprefix(MEMORY_PREFIX).removesuffix(suffix).replace("/", " ").replace("_", " "), unit)
        for suffix, unit in _MEMORY_UNITS
        for name in metrics
        if name.startswith(MEMORY_PREFIX) and name.endswith(suffix)
    ]


def memory_group(metrics: Iterable[str], num_runs: int) -> PanelGroup:
    """One run: a line a phase. Several: their peaks alone, for a line a run and phase would tell nobody anything."""
    phases = memory_phases(metrics) if num_runs == 1 else []
    panels = [
        Panel(
            "Memory by phase", unit, tuple((name, phase) for name, phase, other in phases if other == unit), _HEALTHY, zero=True
        )
        for unit in dict.fromkeys(unit for _, _, unit in phases)
    ]
    return PanelGroup("memory", "Memory", (*panels, PEAK_MEMORY))


def present(group: PanelGroup, metrics: set[str]) -> PanelGroup:
    """The group without lines and panels that no run recorded."""
    panels: list[Panel] = []
    for panel in group.panels:
        lines = tuple(line for line in panel.lines if line[0] in metrics)
        if lines:
            panels.append(replace(panel, lines=lines))
    return PanelGroup(group.name, group.title, tuple(panels))


def groups_for(metrics: Sequence[str], num_runs: int = 1) -> list[PanelGroup]:
    """The groups that have something to draw, of one run or of several."""
    known = set(metrics)
    groups = [present(group, known) for group in (LEARNING, SPEED, memory_group(metrics, num_runs), SYNC, MISMATCH)]
    return [group for group in groups if group.panels]
