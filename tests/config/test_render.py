from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from megatron_rl.config.loading import compose
from megatron_rl.config.render import base_file, groups, render_section, rendered_files
from megatron_rl.config.schema import REQUIRED, all_keys

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(rendered_files()))
def test_rendered_files_match_the_schema(name: str) -> None:
    assert (ROOT / name).read_text() == rendered_files()[name], "run `make render`"


@pytest.mark.parametrize("group", groups())
def test_render_section_roundtrips(group: str) -> None:
    """Each base file holds every default of its section, readable by OmegaConf with its type."""
    read = OmegaConf.to_container(OmegaConf.create(render_section(group)))
    for key in all_keys().values():
        if key.section is None and key.dotted.startswith(f"{group}.") and key.default is not REQUIRED:
            value = read
            for part in key.dotted.split(".")[1:]:
                value = value[part] if isinstance(value, dict) and part in value else None
            expected = list(key.default) if isinstance(key.default, tuple) else key.default
            if value is not None or expected is None:
                assert value == expected, key.dotted


def test_every_key_has_a_description() -> None:
    assert [key.dotted for key in all_keys().values() if not key.field.description] == []


def test_base_files_are_chosen_by_the_root() -> None:
    config = compose([])
    assert config.actor.optim.lr == 1e-6
    assert config.critic.optim.lr == 1e-5
    assert base_file("rollout") == "vllm"
