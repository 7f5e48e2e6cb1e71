"""What a checkpoint folder decides of the model section, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

from megatron_rl.config.checkpoint_shape import apply_checkpoint_shape
from tests.support.tiny_models import tiny_model


def test_apply_checkpoint_shape_keeps_the_layer_implementation(tmp_path: Path) -> None:
    """It is set by a file, so it is not among the keys typed on the command line."""
    (tmp_path / "config.json").touch()
    composed = {**tiny_model(num_layers=2).model_dump(), "path": str(tmp_path), "transformer_impl": "local"}
    container = {"model": composed}
    apply_checkpoint_shape(container, {}, lambda _: tiny_model(num_layers=4))
    assert container["model"]["num_layers"] == 4
    assert container["model"]["transformer_impl"] == "local"
