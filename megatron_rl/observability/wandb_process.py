"""The child process that talks to Weights & Biases: ``python -m megatron_rl.observability.wandb_process``.

It reads one JSON object a line from standard input, first the run's description and then its steps, and reports what
became of the run in one JSON line on standard output. Whatever the network does happens here, never in the trainer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from typing import IO, Any

from megatron_rl.runtime.processes import leave_stop_signals_to_ranks

PROBE_TIMEOUT_S = 5.0
FINISH_TIMEOUT_S = 60.0


def unreachable(url: str, timeout_s: float) -> str | None:
    """Why nothing answers at ``url``, or None if something does. An HTTP error is an answer."""
    try:
        urllib.request.urlopen(url, timeout=timeout_s).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return None


def open_run(description: dict[str, Any]) -> tuple[Any, str, str]:
    """Start the run online, or offline if the server cannot be reached or refuses us.

    Returns ``(run, mode, reason)``; the reason is empty where nothing went wrong.
    """
    import wandb

    settings = wandb.Settings(silent=True, console="off", init_timeout=20)
    arguments = {**description, "resume": "allow", "settings": settings}
    chosen = wandb.setup().settings  # Unlike a fresh Settings, these know the user's environment and files.
    if chosen.mode in ("offline", "disabled", "dryrun"):
        return wandb.init(**arguments), chosen.mode, ""
    reason = unreachable(chosen.base_url, PROBE_TIMEOUT_S)
    if reason is None:
        try:
            return wandb.init(**arguments), "online", ""
        except Exception as error:  # wandb raises many kinds: no key, no permission, time-out.
            reason = str(error)
    return wandb.init(**arguments, mode="offline"), "offline", reason


def relay(lines: IO[str], run: Any) -> None:
    """Log each step until the input ends. The trainer's step is an axis of its own, so a resumed run continues it."""
    run.define_metric("trainer/step")
    run.define_metric("*", step_metric="trainer/step")
    for line in lines:
        message = json.loads(line)
        run.log({"trainer/step": message["step"], **message["values"]})


def main() -> None:
    """Serve one run."""
    leave_stop_signals_to_ranks()
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # wandb prints to standard output, which belongs to the report.

    def say(mode: str, reason: str) -> None:
        print(json.dumps({"mode": mode, "reason": reason}), file=report, flush=True)

    try:
        run, mode, reason = open_run(json.loads(sys.stdin.readline()))
        say(mode, reason)
        relay(sys.stdin, run)
        # The trainer is gone or done; a dead network must not leave an orphan behind.
        watchdog = threading.Timer(FINISH_TIMEOUT_S, os._exit, args=(1,))
        watchdog.daemon = True
        watchdog.start()
        run.finish()
    except Exception as error:
        say("failed", f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
