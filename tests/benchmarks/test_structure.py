"""Measures of the code's structure, on packages that are written for the tests."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.structure import PACKAGES, Module, circles, files_naming, load


def package(folder: Path, **files: str) -> list[Module]:
    """Write and load a package `made` with these files; `__` in a name stands for a folder."""
    for name, text in {"__init__": "", **files}.items():
        path = folder / "made" / (name if name == "__init__" else name.replace("__", "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return load(folder / "made")


def test_imports_of_type_checkers_and_functions_close_a_circle(tmp_path: Path) -> None:
    """However a file imports another, absolute or relative, it counts; others are not listed."""
    modules = package(
        tmp_path,
        a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.inner import b\n",
        inner__b="def f() -> None:\n    from . import c\n",
        inner__c="from ..a import X\nimport json\n",
        d="import made.a\nfrom made import e\n",
        e="from json import loads\n",
    )
    (circle,) = circles(modules)
    assert [module.name for module in circle] == ["made.a", "made.inner.b", "made.inner.c"]


def test_no_two_files_of_the_product_import_each_other() -> None:
    """Neither directly nor through others, also inside of a layer."""
    assert circles([each for folder in PACKAGES.values() for each in load(folder)]) == []


def test_names_in_code_count_and_docstrings_do_not(tmp_path: Path) -> None:
    """A name counts as a variable, an attribute, an argument, an import or a text."""
    modules = package(
        tmp_path,
        said='"""Redis and its rules."""\n# Redis\nX = 1\n"""Redis again."""\n',
        attribute="def f(settings):\n    return settings.redis_url\n",
        argument="def f(redis=None): ...\n",
        imported="from made.store import RedisStore as Store\n",
        text="PLACES = ('memory', 'redis')\n",
    )
    found = files_naming(re.compile("redis", re.IGNORECASE), modules)
    names = ["argument", "attribute", "imported", "text"]
    assert [module.name for module in found] == [f"made.{name}" for name in names]
