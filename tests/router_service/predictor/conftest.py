"""Fixtures of the predictor's tests."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from router_service.artifact import SHIPPED, TOKENIZER


@pytest.fixture
def shipped_tokenizer() -> Tokenizer:
    """Return a fresh copy of the shipped artifact's tokenizer."""
    return Tokenizer.from_file(str(SHIPPED / TOKENIZER))
