"""What ``megatron-rl env`` says of parts that are there, absent, broken or strangers."""

from __future__ import annotations

import json

import pytest

from megatron_rl.cli import env
from megatron_rl.cli.env import Finding, apex, layers, transformer_engine
from megatron_rl.config.errors import ConfigError


@pytest.mark.parametrize(
    "installed,state",
    [(set(), "absent"), ({"apex", "amp_C"}, "installed"), ({"apex"}, "another package called apex")],
    ids=["none", "nvidia", "pypi_stranger"],
)
def test_apex_tells_nvidias_from_the_stranger(installed: set[str], state: str) -> None:
    finding = apex(lambda name: object() if name in installed else None, needed=True)
    assert finding.state == state
    assert ("pip uninstall apex" in finding.cost) == (state == "another package called apex")


def test_apex_costs_nothing_beside_transformer_engine() -> None:
    assert apex(lambda _: None, needed=False).cost.startswith("nothing")
    assert "Adam" in apex(lambda _: None, needed=True).cost


@pytest.mark.parametrize(
    ("fault", "installed", "on_cuda", "state", "cost"),
    [
        (None, "2.20.2", True, "2.20.2", ""),
        (None, "2.20.2", False, "2.20.2", "CUDA only"),
        ("not installed", None, True, "absent", "slower attention"),
        ("not installed", None, False, "absent", "nothing on a CPU"),
        ("OSError: libcudnn", "2.20.2", True, "2.20.2, broken", "OSError: libcudnn"),
    ],
    ids=["used", "cpu", "absent", "absent_cpu", "broken"],
)
def test_transformer_engine_says_what_its_absence_costs(
    fault: str | None, installed: str | None, on_cuda: bool, state: str, cost: str
) -> None:
    finding = transformer_engine(fault, installed, on_cuda)
    assert finding.state == state
    assert cost in finding.cost
    assert bool(finding.cost) == bool(cost)


def test_layers_names_what_auto_builds() -> None:
    assert layers(None, on_cuda=True, apex_accumulation=False).state.startswith("Transformer Engine")
    assert layers(None, on_cuda=False, apex_accumulation=False).state == "local"
    assert "Apex" in layers("not installed", on_cuda=True, apex_accumulation=True).state


def test_run_prints_findings_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(env, "findings", lambda: [Finding("Triton", "absent", "no kernels")])
    assert env.run(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "Triton", "state": "absent", "cost": "no kernels"}]


def test_run_rejects_other_arguments() -> None:
    with pytest.raises(ConfigError, match=r"--yaml: env takes no argument but --json"):
        env.run(["--yaml"])
