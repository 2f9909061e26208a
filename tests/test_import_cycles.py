"""Cycles of imports within a room: modules that cannot be imported, or read, one after the other.

Imports for type checking do not count: a topic and its broker know each other, and each names the class of the other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapwing

ROOT = Path(lapwing.__file__).parent
LARGEST = 3  # modules in one cycle


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are there at run time."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from walk(node)


def imports(room: str) -> dict[str, set[str]]:
    """Which modules of the room each of them imports."""
    modules = {
        ".".join(("lapwing", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted((ROOT / room).rglob("*.py"))
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found: set[str] = set()
        for node in walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import, which this test does not follow"
                assert node.module is not None
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
                found |= inner or {node.module}
        graph[name] = (found & modules.keys()) - {name}
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that `start` imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import each other, directly or not."""
    reach = {name: reachable(graph, name) for name in graph}
    together = (frozenset({name, *(each for each in reach[name] if name in reach[each])}) for name in graph)
    return {each for each in together if len(each) > 1}


ROOMS = (
    "admin", "broker", "cli", "client", "kernel", "log", "lookup", "net", "nsqd", "outbox", "sessions", "spark",
    "tools", "wire",
)  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_no_cycle_of_imports_is_large(room: str) -> None:
    graph = imports(room)

    assert len(graph) > 1
    assert any(graph.values())
    assert [sorted(each) for each in cycles(graph) if len(each) > LARGEST] == []


def test_a_cycle_is_found_with_all_its_modules() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"d", "e"}, "d": {"a"}, "e": set()}

    assert cycles(graph) == {frozenset("abcd")}


def test_only_imports_for_type_checking_do_not_count() -> None:
    found = imports("broker")["lapwing.broker.channel.ledger"]

    assert "lapwing.broker.channel.latency" not in found
    assert "lapwing.broker.channel.ledger" in imports("broker")["lapwing.broker.channel.subscription"]
