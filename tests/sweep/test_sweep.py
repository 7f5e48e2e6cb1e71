"""Which points run, what is remembered of them, and where a sweep stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from launchers.submit import launch_task
from launchers.sweep import Started, decide, run_sweep
from launchers.sweep_plan import PlannedPoint, SweepPlan
from launchers.sweep_points import SweepPoint
from launchers.sweep_spec import spec_of
from launchers.sweep_state import PointRecord, read_manifest, read_record
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny() -> RunConfig:
    return compose_run(["experiment=tiny_cpu", "trainer.project_name=s"])


class Starter:
    """Ends each start as told and remembers what it was asked to start."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.names: list[str] = []

    def __call__(self, planned: PlannedPoint) -> Started:
        self.names.append(planned.point.name)
        return Started(exit_code=self.codes.pop(0))


def plan(
    config: RunConfig, folder: Path, names: Sequence[str], *, retry: bool = False, extra: str = "a=1", runs: bool = True
) -> SweepPlan:
    spec = spec_of({"kind": "grid", "name": "s", "parameters": {"rollout.n": list(names)}, "retry": retry})
    return SweepPlan(
        spec=spec,
        folder=folder / "s",
        points=tuple(
            PlannedPoint(
                point=SweepPoint(name=name, settings={"rollout.n": name}, overrides=(extra, f"rollout.n={name}")),
                config=config.model_copy(
                    update={
                        "trainer": config.trainer.model_copy(update={"output_dir": str(folder), "experiment_name": name}),
                    }
                ),
                num_ranks=2,
                runs=runs,
            )
            for name in names
        ),
    )


def states(ready: SweepPlan) -> dict[str, str | None]:
    records = {p.point.name: read_record(ready.folder, p.point.name) for p in ready.points}
    return {name: None if record is None else record.state for name, record in records.items()}


@pytest.mark.parametrize(
    ("state", "retry", "expected"),
    [
        (None, False, "run"),
        ("started", False, "run"),
        ("stopped", False, "run"),
        ("finished", True, "skip finished"),
        ("failed", False, "skip failed"),
        ("failed", True, "run"),
        ("submitted", False, "skip submitted"),
        ("submitted", True, "run"),
    ],
)
def test_decide_matches_the_table(state, retry: bool, expected: str) -> None:
    record = None if state is None else PointRecord(state=state, overrides=[])
    assert decide(record, runs=True, retry=retry) == expected
    assert decide(record, runs=False, retry=retry) == "skip estimated"


def test_run_sweep_goes_on_after_a_failure_and_skips_what_is_done(tiny: RunConfig, tmp_path: Path) -> None:
    first = Starter(0, 1, 0)
    assert run_sweep(plan(tiny, tmp_path, "abc"), first) == 1
    assert first.names == ["a", "b", "c"]
    assert states(plan(tiny, tmp_path, "abc")) == {"a": "finished", "b": "failed", "c": "finished"}
    again = Starter()
    assert run_sweep(plan(tiny, tmp_path, "abc"), again) == 1
    assert again.names == []
    retried = Starter(0)
    assert run_sweep(plan(tiny, tmp_path, "abc", retry=True), retried) == 0
    assert retried.names == ["b"]


@pytest.mark.parametrize("code", [85, 130, 143], ids=["saved", "sigint", "sigterm"])
def test_run_sweep_stops_where_a_point_was_told_to(code: int, tiny: RunConfig, tmp_path: Path) -> None:
    starter = Starter(0, code)
    assert run_sweep(plan(tiny, tmp_path, "abc"), starter) == code
    assert states(plan(tiny, tmp_path, "abc")) == {"a": "finished", "b": "stopped", "c": None}
    rest = Starter(0, 0)
    assert run_sweep(plan(tiny, tmp_path, "abc"), rest) == 0
    assert rest.names == ["b", "c"]


def test_run_sweep_never_starts_what_is_only_modelled(tiny: RunConfig, tmp_path: Path) -> None:
    starter = Starter()
    assert run_sweep(plan(tiny, tmp_path, "ab", runs=False), starter) == 0
    assert starter.names == []


def test_run_sweep_records_what_a_start_refuses(tiny: RunConfig, tmp_path: Path) -> None:
    def refuse(planned: PlannedPoint) -> Started:
        raise ConfigError(["launcher.master_port=1: taken"])

    assert run_sweep(plan(tiny, tmp_path, "a"), refuse) == 1
    record = read_record(tmp_path / "s", "a")
    assert record is not None and (record.state, record.reason) == ("failed", "launcher.master_port=1: taken")


def test_run_sweep_rejects_results_of_other_overrides(tiny: RunConfig, tmp_path: Path) -> None:
    run_sweep(plan(tiny, tmp_path, "ab"), Starter(0, 1))
    starter = Starter()
    with pytest.raises(
        ConfigError, match=r"a: its results in .* \(then a=1, now a=2\); give the sweep another name="
    ) as caught:
        run_sweep(plan(tiny, tmp_path, "ab", extra="a=2"), starter)
    assert len(caught.value.problems) == 1, "the failed point may change"
    assert starter.names == []


def test_manifest_roundtrips(tiny: RunConfig, tmp_path: Path) -> None:
    ready = plan(tiny, tmp_path, "ab")
    run_sweep(ready, Starter(0, 0))
    manifest = read_manifest(ready.folder)
    assert manifest.spec == ready.spec
    assert [(p.name, p.settings, p.num_ranks) for p in manifest.points] == [
        ("a", {"rollout.n": "a"}, 2),
        ("b", {"rollout.n": "b"}, 2),
    ]


def test_run_sweep_names_the_first_failing_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real torchrun, fake worker: rank 1 of task evaluate fails."""
    for name in ("RANK", "WORLD_SIZE", "MEGATRON_RL_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    config = compose_run(["experiment=tiny_cpu", "trainer.project_name=s"])

    def evaluate(planned: PlannedPoint) -> Started:
        return Started(exit_code=launch_task("evaluate", planned.config, module="tests.launchers.fake_worker"))

    assert run_sweep(plan(config, tmp_path, "a"), evaluate) == 1
    record = read_record(tmp_path / "s", "a")
    assert record is not None and record.run_dir is not None
    assert record.reason == "rank 1 (exit code 7): ValueError: rank 1 is broken on purpose"
    assert Path(record.run_dir).parent == tmp_path / "s" / "a"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_run_sweep_stops_when_signalled(number: signal.Signals, tmp_path: Path) -> None:
    """Real torchrun, fake worker: the ranks of the first point save, the second point never starts."""
    command = [sys.executable, "-m", "tests.sweep.start_sweep", str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MEGATRON_RL_ATTEMPT")}
    job = subprocess.Popen(command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("s/n_4/2*/ready*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(number)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 85, output
    record = read_record(tmp_path / "s", "n_4")
    assert record is not None and record.state == "stopped"
    assert "n_4 was told to stop, and the sweep with it" in output
    assert not (tmp_path / "s" / "n_8").exists()
