"""A worker that fails until torchrun has started it a second time."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(run_dir: Path) -> int:
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (run_dir / f"start{count}.rank{os.environ['RANK']}").touch()
    return 7 if count == "0" else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[2])))
