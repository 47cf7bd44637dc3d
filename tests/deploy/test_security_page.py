"""SECURITY.md: its tables agree with the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from router_service.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "SECURITY.md"
UNITS = {
    "": 1.0, "%": 0.01, "s": 1.0, "h": 3600.0, "days": 86_400.0,
    "KiB": 2.0**10, "MiB": 2.0**20,
}  # fmt: skip
_ROW = re.compile(r"^\| `([\w.]+)` \| ([^|]+) \|", re.MULTILINE)
ROWS: dict[str, str] = {name: stated.strip() for name, stated in _ROW.findall(PAGE.read_text())}
SECTIONS = tuple(Settings.model_fields)


def stated(text: str) -> float | None:
    """Return a number with its unit, in bytes, seconds or as a share; None for `none`."""
    if text == "none":
        return None
    number, _, unit = text.partition(" ")
    return float(number) * UNITS[unit]


def found(name: str) -> object:
    """Return a setting's default or a constant's value."""
    section, *rest = name.split(".")
    if section not in SECTIONS:
        module, _, constant = name.rpartition(".")
        value: object = getattr(importlib.import_module(f"router_service.{module}"), constant)
        return value
    value = getattr(Settings(), section)
    for part in rest:
        assert isinstance(value, BaseModel), name
        assert part in type(value).model_fields, f"{name} is not a setting"
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", ROWS)
def test_documented_defaults_are_those_of_the_code(name: str) -> None:
    """Each setting and constant in the tables exists, and has the documented value."""
    value, expected = found(name), stated(ROWS[name])
    assert value == expected or (
        isinstance(value, int | float) and expected is not None and value == pytest.approx(expected)
    )


def test_named_settings_exist() -> None:
    """Every dotted setting in the text exists."""
    text = PAGE.read_text()
    named = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})(?:\.\w+)+)(?:: \w+)?`", text))
    assert len(named) > len(ROWS) / 2
    for name in named:
        found(name)
