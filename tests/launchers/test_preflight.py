from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launchers.preflight import NodeNeeds, node_problems


@pytest.fixture
def needs(tmp_path: Path) -> NodeNeeds:
    made = NodeNeeds(folder=str(tmp_path / "preflight"), gpus=0, min_free_gib=0.0, token="t")
    made.publish()
    return made


def test_node_problems_accepts_a_good_node(needs: NodeNeeds) -> None:
    assert node_problems("n1", NodeNeeds.from_json(needs.to_json()), visible_gpus=0) == []


@pytest.mark.parametrize(
    "change,words",
    [
        ({"token": "other"}, "another folder here than on the batch host"),
        ({"folder": "/nonexistent/run"}, "cannot use the shared folder"),
        ({"min_free_gib": 1e9}, "launcher.min_free_gib"),
        ({"gpus": 8}, "shows 2 GPUs, the job needs 8"),
    ],
    ids=["other_folder", "no_folder", "full_disk", "lost_gpu"],
)
def test_node_problems_rejects_bad_node(change, words: str, needs: NodeNeeds) -> None:
    assert any(words in problem for problem in node_problems("n1", replace(needs, **change), visible_gpus=2))


def test_node_problems_rejects_wrong_clock(needs: NodeNeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launchers.preflight.time.time", lambda: 1_000_000_000.0)
    (problem,) = node_problems("n1", needs, visible_gpus=0)
    assert "its clock is" in problem
