"""The quick form of a product has every combination that it promises."""

from __future__ import annotations

import re
from itertools import combinations, product
from pathlib import Path

import pytest

from tests import products
from tests.products import covering, pairwise

ROOT = Path(__file__).parents[1]
CASES = list(product("abcdefgh", range(6), (False, True)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the quick form, also within `make check-hostile`."""
    monkeypatch.setattr(products, "IS_LONG", False)


def test_quick_form_has_every_pair_of_values() -> None:
    """Each pair of two fields' values is in a case, and few cases are enough."""
    few = pairwise(CASES)
    for one, other in combinations(range(3), 2):
        pairs = {(case[one], case[other]) for case in CASES}
        assert {(case[one], case[other]) for case in few} == pairs
    assert len(few) <= 8 * 6 + 2
    assert few == [case for case in CASES if case in few], "the order is the same"


def test_quick_form_has_every_value_of_further_groups() -> None:
    """A group of three fields brings back the whole product; one of its parts, only that part."""
    assert pairwise(CASES, lambda case: case) == CASES
    few = pairwise(CASES, lambda case: (case[0] == "a", case[1], case[2]))
    assert {(case[0] == "a", *case[1:]) for case in few} == {
        (case[0] == "a", *case[1:]) for case in CASES
    }
    assert len(few) < len(CASES)


def test_cases_need_not_be_a_whole_product() -> None:
    """Only combinations of the given cases count."""
    some = [case for case in CASES if case[0] != "a" or case[1] == 0]
    assert {case[:2] for case in pairwise(some)} == {case[:2] for case in some}


def test_cases_without_new_values_are_left_out() -> None:
    """Equal cases are taken once; without groups, none is taken."""
    assert sorted(covering("abca", lambda letter: letter)) == ["a", "b", "c"]
    assert covering("abc") == []


def test_long_form_is_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOSTILE=long` leaves nothing out."""
    monkeypatch.setattr(products, "IS_LONG", True)
    assert pairwise(CASES) == CASES


QUICK_FORM = r"^from tests\.products import (pairwise|IS_LONG, covering)$"


def test_check_hostile_runs_all_files_with_products() -> None:
    """Every file that imports the quick form has its long form in `make check-hostile`."""
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    users = {
        path.as_posix()
        for path in files
        if re.search(QUICK_FORM, (ROOT / path).read_text(), re.MULTILINE)
        and not path.is_relative_to("tests/hostile")
    }
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [named] = [line for line in makefile.splitlines() if line.startswith("PRODUCTS := ")]
    assert set(named.removeprefix("PRODUCTS := ").split()) == users
