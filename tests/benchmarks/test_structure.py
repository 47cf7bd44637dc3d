"""The benchmarks of structure and stages: no circles, and names of functions that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import router_service
from benchmarks import stages
from benchmarks.structure import PACKAGES, circles, load


def test_no_two_files_of_the_product_import_each_other() -> None:
    """Neither directly nor through others, also inside of a layer."""
    assert circles([each for folder in PACKAGES.values() for each in load(folder)]) == []


PACKAGE = Path(router_service.__file__).parent


def functions_of(file: str) -> set[str]:
    """Return the qualified names of the functions in a file of the package."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(ast.parse((PACKAGE / file).read_text()), "")
    return found


@pytest.mark.parametrize("place", stages.STAGES)
def test_every_timed_function_exists(place: str) -> None:
    """A function that was renamed is noticed; its time would count to another stage."""
    file, _, name = place.partition(":")
    assert name in functions_of(file)
