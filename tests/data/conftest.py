"""Tokenizers shared by the data tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from megatron_rl.data.tokenizer import Tokenizer, load_tokenizer
from tests.data.tokenizer_folders import write_bpe_folder, write_sentencepiece_model


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_byte_tokenizer(tmp_path_factory.mktemp("byte"))))


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bpe_folder(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="session")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentencepiece_model(tmp_path_factory.mktemp("sp") / "tokenizer.model")
