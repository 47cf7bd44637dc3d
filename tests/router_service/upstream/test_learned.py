"""What is learned is forgotten."""

from __future__ import annotations

from router_service.upstream.retries import MAX_LEARNED, ExpiringSet


def test_facts_are_known_for_a_while() -> None:
    """Each for its own time, which begins anew when it is learned again."""
    now_s = 100.0
    learned = ExpiringSet(10, lambda: now_s)
    assert "a" not in learned
    learned.add("a")
    now_s += 6
    learned.add("b")
    assert "a" in learned
    now_s += 4
    assert ("a" in learned, "b" in learned) == (False, True)
    learned.add("a")
    now_s += 9
    assert ("a" in learned, "b" in learned) == (True, False)


def test_the_oldest_fact_makes_room() -> None:
    """However many there are to learn, memory is bounded."""
    learned = ExpiringSet(10, lambda: 0.0)
    for number in range(MAX_LEARNED):
        learned.add(number)
    learned.add(0)
    learned.add("new")
    assert [fact in learned for fact in (0, 1, 2, "new")] == [True, False, True, True]
