"""Imports without collections and without packages that nothing uses."""

from __future__ import annotations

import gc
import sys

import pytest

from megatron_rl.runtime.quick_imports import quick_imports


def test_quick_imports_hides_wandb_and_holds_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with quick_imports():
        assert not gc.isenabled()
        with pytest.raises(ImportError):
            import wandb  # noqa: F401
    assert gc.isenabled()
    assert "wandb" not in sys.modules


def test_quick_imports_keeps_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", sys)
    with pytest.raises(RuntimeError, match="from within"), quick_imports():
        assert sys.modules["wandb"] is sys
        raise RuntimeError("from within")
    assert sys.modules["wandb"] is sys
    assert gc.isenabled()


def test_quick_imports_leaves_collections_off_where_they_were() -> None:
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
