"""The tested table."""

from __future__ import annotations

from megatron_rl.rollout.engine_versions import TESTED_VERSIONS, installed_versions, version_warnings


def test_version_warnings_names_each_untested_package() -> None:
    tested = {package: versions[0] for package, versions in TESTED_VERSIONS.items()}
    assert version_warnings(tested) == []
    assert [text.split()[:2] for text in version_warnings({**tested, "vllm": "9.9.9"})] == [["vllm", "9.9.9"]]


def test_installed_versions_drops_build_tags() -> None:
    assert set(installed_versions()) == set(TESTED_VERSIONS)
    assert not any("+" in version for version in installed_versions().values())
