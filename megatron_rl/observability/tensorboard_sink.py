"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


class TensorboardSink:
    """Writes one scalar per name and step to ``folder``."""

    def __init__(self, folder: Path) -> None:
        """Open an event file in ``folder``."""
        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the scalars; a background thread writes them."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
