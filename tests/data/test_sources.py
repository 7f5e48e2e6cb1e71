import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from megatron_rl.config.data import PROMPT_SUFFIXES
from megatron_rl.data import sources
from megatron_rl.data.sources import num_rows, read_rows

_ROWS: list[dict[str, Any]] = [
    {"prompt": [{"role": "user", "content": "a"}], "answer": "1", "info": {"level": 2, "tags": ["x", "y"]}},
    {
        "prompt": [
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": ["p", "q"]}]},
            {"role": "tool", "content": "c"},
        ],
        "answer": "2",
    },
    {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "d"}], "answer": "3", "info": {"level": 5}},
]


def _write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _leaf_types(value: Any) -> set[type]:
    if isinstance(value, dict):
        return set().union(*(_leaf_types(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_leaf_types(item) for item in value))
    return {type(value)}


@pytest.mark.parametrize("batch_rows", [1, 2, 1024], ids="chunks_of_{}".format)
def test_read_rows_gives_the_same_from_parquet_and_jsonl(
    tmp_path: Path, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PARQUET_BATCH_ROWS", batch_rows)
    parquet.write_table(pyarrow.Table.from_pylist(_ROWS), tmp_path / "rows.parquet", row_group_size=1)
    assert parquet.ParquetFile(tmp_path / "rows.parquet").num_row_groups == 3
    from_parquet = [row.values for row in read_rows([str(tmp_path / "rows.parquet")], "data.train_files")]
    from_jsonl = [row.values for row in read_rows([_write_jsonl(tmp_path / "rows.jsonl", _ROWS)], "data.train_files")]
    assert from_parquet == from_jsonl == _ROWS
    assert set().union(*map(_leaf_types, from_parquet)) == {str, int}


def test_read_rows_keeps_null_list_elements(tmp_path: Path) -> None:
    file = _write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "scores": [1, None, 2], "gone": None}])
    assert read_rows([file], "data.train_files")[0].values == {"prompt": "a", "scores": [1, None, 2]}


def test_read_rows_numbers_rows_per_file(tmp_path: Path) -> None:
    a = _write_jsonl(tmp_path / "a.jsonl", _ROWS[:2])
    b = _write_jsonl(tmp_path / "b.jsonl", _ROWS[2:])
    assert [row.uid for row in read_rows([a, b], "data.train_files")] == [f"{a}:0", f"{a}:1", f"{b}:0"]
    assert [row.uid for row in read_rows([a, b], "data.train_files", max_rows_per_file=1)] == [f"{a}:0", f"{b}:0"]


def test_num_rows_matches_what_is_read(tmp_path: Path) -> None:
    file = _write_jsonl(tmp_path / "rows.jsonl", _ROWS)
    Path(file).write_text(Path(file).read_text().replace("\n", "\n\n").rstrip("\n"))
    parquet.write_table(pyarrow.Table.from_pylist(_ROWS), tmp_path / "rows.parquet", row_group_size=2)
    assert num_rows(file) == num_rows(str(tmp_path / "rows.parquet")) == len(read_rows([file], "data.train_files")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n\n{"prompt": \n', "line 3: not valid JSON"),
        ('{"prompt": "a"}\n[1]\n', "line 2: expected a JSON object, got list"),
        ("", "has no rows"),
    ],
    ids=["broken_line", "not_an_object", "empty"],
)
def test_read_rows_rejects_malformed_jsonl(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_rows([str(tmp_path / "rows.jsonl")], "data.train_files")
    assert "rows.jsonl" in str(caught.value)


def test_read_rows_rejects_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(ValueError, match="not UTF-8"):
        read_rows([str(tmp_path / "rows.jsonl")], "data.train_files")


def test_read_rows_rejects_broken_parquet(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_rows([str(tmp_path / "rows.parquet")], "data.train_files")


@pytest.mark.parametrize("suffix", PROMPT_SUFFIXES)
def test_read_rows_reads_every_ending_that_the_check_lets_pass(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(_ROWS), file)
    else:
        _write_jsonl(file, _ROWS)
    assert len(read_rows([str(file)], "data.train_files")) == len(_ROWS)


@pytest.mark.parametrize(
    ("files", "message"),
    [(["no.jsonl"], "there is no file no.jsonl"), (["a.csv"], "unknown format '.csv'"), (["a.jsonl"] * 2, "listed twice")],
    ids=["missing", "format", "twice"],
)
def test_read_rows_rejects_bad_file_lists(files: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.val_files: .*{message}"):
        read_rows(files, "data.val_files")
