"""Dead letters of several nsqds: which are meant, and the answers of all nodes as one list: pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lapwing.client.admin import LetterFilter
from lapwing.client.admin_results import DeadGroups, DeadLetters
from lapwing.client.cluster import Json

CONDITIONS: Final = ("source", "channel", "reason", "error", "text", "pattern", "field", "since", "until")


def letter_filter(given: Mapping[str, str]) -> LetterFilter:
    """Return the filter for conditions as the page's address has them. Raises `ValueError` with a sentence."""
    members: dict[str, Any] = dict(given)
    if "field" in members:
        members["fields"] = parse_field(members.pop("field"))
    return LetterFilter(topic=members.pop("source", ""), **members)


def parse_field(text: str) -> Json:
    """Parse `/pointer=value`; the value is JSON where it is JSON. Raises `ValueError` with a sentence for the user."""
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.strip().startswith("/"):
        raise ValueError(f"A JSON field looks like /customer/id=17, not {text[:80]!r}.")
    try:
        return {pointer.strip(): json.loads(value)}
    except ValueError:
        return {pointer.strip(): value.strip()}


def merge_groups(answers: Mapping[str, DeadGroups]) -> tuple[list[Json], int]:
    """Join the groups of nodes by origin, reason and error, the largest first; and count the letters in no group.

    A group's `sample` is `node|sequence`.
    """
    found: dict[tuple[str, str, str, str], Json] = {}
    for node, answer in answers.items():
        for each in answer.groups:
            key = each.topic, each.channel, each.reason, each.error
            group = found.get(key)
            if group is None:
                found[key] = {**each.document, "sample": f"{node}|{each.sample}"}
                continue
            group["letters"] += each.letters
            group["first"] = min(group["first"], each.first)
            group["last"] = max(group["last"], each.last)
    groups = sorted(found.values(), key=lambda group: -group["letters"])
    return groups, sum(answer.others for answer in answers.values())


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters of several nodes, the oldest first, each with its `in` node; and where the next page starts."""

    letters: list[Json]
    edges: dict[str, int]  # by node: the last letter shown
    complete: bool


def merge_letters(answers: Mapping[str, DeadLetters], *, after: Mapping[str, int], limit: int) -> LetterPage:
    """Join the letters of nodes to one page of at most `limit`."""
    letters = [{**letter.document, "in": node} for node, answer in answers.items() for letter in answer.letters]
    letters.sort(key=lambda letter: (letter["at"] or "", letter["in"], letter["sequence"]))
    shown = letters[:limit]
    edges = dict(after)
    for letter in shown:
        edges[letter["in"]] = max(letter["sequence"], edges.get(letter["in"], -1))
    more = len(letters) > limit or any(answer.next is not None for answer in answers.values())
    return LetterPage(shown, edges, complete=not more)
