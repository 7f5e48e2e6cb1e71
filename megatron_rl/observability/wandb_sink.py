"""Weights & Biases, at arm's length: the trainer only ever puts numbers into a queue."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_QUEUE_LENGTH = 10_000


class WandbSink:
    """Feeds the child process of ``wandb_process`` from a thread; whatever fails there gives one warning and no more.

    Without a reachable server the run is kept offline below ``folder/wandb`` (``wandb sync`` uploads it later).
    """

    def __init__(
        self, project: str, name: str, folder: Path, config: Mapping[str, object], close_timeout_s: float = 30.0
    ) -> None:
        """Start the child and return at once; ``folder`` identifies the run, so resuming in it continues the run."""
        folder.mkdir(parents=True, exist_ok=True)
        self._close_timeout_s = close_timeout_s
        self._warned = threading.Event()
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue(_QUEUE_LENGTH)
        with (folder / "wandb.log").open("a") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "megatron_rl.observability.wandb_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # A Ctrl-C meant for the trainer must not lose the run's end.
            )
        run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
        self._messages.put({"project": project, "name": name, "id": run_id, "dir": str(folder), "config": dict(config)})
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._feeder.start()
        self._listener.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Queue one step; never waits. A step that does not fit is dropped."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        try:
            self._messages.put_nowait({"step": step, "values": finite})
        except queue.Full:
            self._warn("does not keep up; some steps are missing there")

    def close(self) -> None:
        """Let the child finish, for at most ``close_timeout_s``; then it is stopped."""
        try:
            self._messages.put_nowait(None)
            self._child.wait(self._close_timeout_s)
        except (queue.Full, subprocess.TimeoutExpired):
            self._warn("did not finish in time; its last steps may be missing there")
            self._child.kill()
            self._child.wait()
        self._listener.join(timeout=1.0)

    def _feed(self) -> None:
        assert self._child.stdin is not None
        try:
            while (message := self._messages.get()) is not None:
                self._child.stdin.write(json.dumps(message, default=str) + "\n")
                self._child.stdin.flush()
            self._child.stdin.close()
        except OSError:
            self._warn("stopped; see wandb.log in the run folder")

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            report = json.loads(line)
            if report["reason"]:
                self._warn(f"is {report['mode']}: {report['reason']}")

    def _warn(self, what: str) -> None:
        if not self._warned.is_set():
            self._warned.set()
            logger.warning("wandb %s. Training goes on; metrics.jsonl is complete.", what)
