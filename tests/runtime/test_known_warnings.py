import logging
import warnings

import pytest

from megatron_rl.runtime.known_warnings import silence_known_warnings


def test_known_log_line_is_dropped_and_others_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    silence_known_warnings()
    engine = logging.getLogger("vllm.engine.arg_utils")
    engine.warning("The global random seed is set to %d.", 0)
    engine.warning("prefix caching is off")
    assert [record.getMessage() for record in caplog.records] == ["prefix caching is off"]


def test_known_warning_is_ignored_and_others_are_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        silence_known_warnings()
        warnings.warn("Detected a Jax installation but ...", RuntimeWarning, stacklevel=1)
        warnings.warn("another", RuntimeWarning, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["another"]
