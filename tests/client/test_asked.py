"""Answers of several daemons, some of which make no sense."""

from typing import Any

from lapwing.client.http import Asked


def total(found: dict[str, Any]) -> int:
    """Add numbers up; any text alone passes for one, as there is nothing to add it to."""
    values = [answer["depth"] for answer in found.values()]
    result = values[0] if values else 0
    for value in values[1:]:
        result += value
    return result


def test_an_answer_of_another_shape_is_a_failure_of_its_daemon() -> None:
    asked: Asked[Any] = Asked({"a": {"depth": 1}, "b": [], "c": {"depth": 3}}, {})

    assert asked.combined(total) == 4
    assert list(asked.answers) == ["a", "c"]
    assert "b: its answer could not be understood" in asked.errors[0]


def test_an_answer_that_does_not_fit_the_others_is_a_failure_too() -> None:
    asked: Asked[Any] = Asked({"a": {"depth": 1}, "b": {"depth": "2"}, "c": {"depth": 3}}, {})

    assert asked.combined(total) == 4
    assert list(asked.failures) == ["b"]


def test_each_daemon_is_judged_by_its_own_answer_first() -> None:
    tried: list[int] = []

    def counted(found: dict[str, Any]) -> int:
        tried.append(len(found))
        return total(found)

    Asked({str(each): {"depth": each} if each else [] for each in range(50)}, {}).combined(counted)

    assert tried == [50, *[1] * 50, 49]
