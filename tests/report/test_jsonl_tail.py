from __future__ import annotations

import os
from pathlib import Path

from megatron_rl.report.jsonl_tail import JsonlTail, read_objects


def test_read_new_returns_each_object_once(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    tail = JsonlTail(path)
    assert tail.read_new() == ([], False)
    path.write_text('{"step": 1}\n')
    assert tail.read_new() == ([{"step": 1}], True)
    with path.open("a") as file:
        file.write('{"step": 2}\n{"step": 3}\n')
    assert tail.read_new() == ([{"step": 2}, {"step": 3}], False)
    assert tail.read_new() == ([], False)


def test_read_new_leaves_a_line_being_written_for_later(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes('{"step": 1}\n{"text": "né'.encode()[:-1])
    tail = JsonlTail(path)
    assert tail.read_new()[0] == [{"step": 1}]
    path.write_bytes('{"step": 1}\n{"text": "né"}\n'.encode())
    assert tail.read_new() == ([{"text": "né"}], False)


def test_read_new_starts_over_when_the_file_is_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "m.jsonl", tmp_path / "m.tmp"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = JsonlTail(path)
    tail.read_new()
    other.write_text('{"step": 1}\n{"step": 2, "again": true}\n')
    os.replace(other, path)
    assert tail.read_new() == ([{"step": 1}, {"step": 2, "again": True}], True)


def test_read_new_starts_over_when_the_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = JsonlTail(path)
    tail.read_new()
    with path.open("r+") as file:
        file.truncate(12)
    assert tail.read_new() == ([{"step": 1}], True)


def test_read_objects_passes_over_what_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": \n[1]\n\n\xff\xfe\n{"step": 2}\n')
    assert read_objects(path) == [{"step": 1}, {"step": 2}]
    assert read_objects(tmp_path / "none.jsonl") == []
