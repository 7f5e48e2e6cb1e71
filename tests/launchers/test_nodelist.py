from __future__ import annotations

import pytest

from launchers.nodelist import expand_nodelist
from launchers.slurm_client import node_names


@pytest.mark.parametrize(
    "text,names",
    [
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("a[1-2],b5", ["a1", "a2", "b5"]),
        ("gpu-a[09-11]-x", ["gpu-a09-x", "gpu-a10-x", "gpu-a11-x"]),
        ("solo", ["solo"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("b.example.org,a[3]", ["b.example.org", "a3"]),
    ],
    ids=["list", "two_names", "suffix", "single", "two_brackets", "zero_padding", "dots"],
)
def test_expand_nodelist_matches_hand_computed(text: str, names: list[str]) -> None:
    assert expand_nodelist(text) == names


@pytest.mark.parametrize("text", ["", "a[1-", "a]1[", "a[3-1]", "a[x]", "a,,b"])
def test_expand_nodelist_rejects_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        expand_nodelist(text)


def test_node_names_needs_no_slurm_client() -> None:
    assert node_names({"SLURM_JOB_NODELIST": "node[01-02]", "PATH": "/nowhere"}) == ["node01", "node02"]


def test_node_names_prefers_scontrol(tmp_path) -> None:
    client = tmp_path / "scontrol"
    client.write_text("#!/bin/sh\necho one\necho two\n")
    client.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        assert node_names({"SLURM_JOB_NODELIST": "x[1-2]", "PATH": str(tmp_path)}) == ["one", "two"]
