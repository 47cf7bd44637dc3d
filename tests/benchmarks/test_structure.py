"""Structure of the code: no two files import each other."""

from __future__ import annotations

from benchmarks.structure import PACKAGES, circles, load


def test_no_two_files_of_the_product_import_each_other() -> None:
    """Neither directly nor through others, also inside of a layer."""
    assert circles([each for folder in PACKAGES.values() for each in load(folder)]) == []
