"""Files that are replaced in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.config.atomic_files import replace_link, write_atomically


@pytest.mark.parametrize("durable", [False, True], ids=["fast", "durable"])
def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path: Path, durable: bool) -> None:
    for text in ("first", "zweite Fassung: ü\n"):
        write_atomically(tmp_path / "a.txt", text, durable=durable)
        assert (tmp_path / "a.txt").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_write_atomically_keeps_the_old_file_where_writing_fails(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a.txt", "new \ud800")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_replace_link_points_elsewhere(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        replace_link(tmp_path / "latest", name)
        assert (tmp_path / "latest").resolve() == (tmp_path / name).resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one", "two"]
