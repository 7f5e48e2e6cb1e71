from __future__ import annotations

import pytest

from megatron_rl.cli.env import apex


@pytest.mark.parametrize(
    "installed,state",
    [(set(), "absent"), ({"apex", "amp_C"}, "installed"), ({"apex"}, "another package called apex")],
    ids=["none", "nvidia", "pypi_stranger"],
)
def test_apex_tells_nvidias_from_the_stranger(installed: set[str], state: str) -> None:
    finding = apex(lambda name: object() if name in installed else None)
    assert finding.state == state
    assert ("pip uninstall apex" in finding.cost) == (state == "another package called apex")
