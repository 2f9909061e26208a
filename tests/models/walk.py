"""Walk the random-history machines by chance alone: many more steps in a second than Hypothesis takes.

    python tests/models/walk.py --steps 10000000         so many steps of the keyed machine, on all processors
    python tests/models/walk.py --history 7/3115         one history again, with every step
    python tests/models/walk.py --machine test_broker_machine.BrokerMachine --steps 100000

The machines are those of `make test`, with their rules, models and checks; only what chooses is another. A history is
named by a seed and a number, and each of its steps is a rule and a seed of its own, so that a step can be left out and
the others stay as they are. The first history that fails is made as short as that allows, and printed.
"""

import argparse
import importlib
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import accumulate, count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
LONGEST = 120  # steps of a history
AT_ONCE = 50  # histories that a process is given at a time
SHORTER = 600  # tries to make a history shorter that fails
NOTHING_TO_DO = 50  # rules in turn whose preconditions do not hold, after which a history ends

Strategy = Callable[[random.Random], Any]
Step = tuple[str, int]  # a rule, and the seed of its arguments


# --- what the machines import from Hypothesis --------------------------------------------------------------------


def integers(lowest: int, highest: int) -> Strategy:
    def draw(chance: random.Random) -> int:
        at = chance.random()
        if at < 0.1:
            return lowest if at < 0.05 else highest
        return chance.randrange(lowest, highest + 1)

    return draw


def booleans() -> Strategy:
    return lambda chance: chance.random() < 0.5


def sampled_from(values: Iterable[Any]) -> Strategy:
    those = [*values]
    return lambda chance: those[int(chance.random() * len(those))]


def lists(elements: Strategy, *, min_size: int = 0, max_size: int = 8, unique: bool = False) -> Strategy:
    def draw(chance: random.Random) -> list[Any]:
        found = [elements(chance) for _ in range(chance.randrange(min_size, max_size + 1))]
        return list(dict.fromkeys(found)) if unique else found

    return draw


def sets(elements: Strategy, *, min_size: int = 0, max_size: int = 8) -> Strategy:
    some = lists(elements, min_size=min_size, max_size=max_size)
    return lambda chance: set(some(chance))


class Data:
    """What a rule draws its further arguments from."""

    def __init__(self, chance: random.Random, drawn: list[Any]) -> None:
        self._chance, self._drawn = chance, drawn

    def draw(self, strategy: Strategy, label: str = "") -> Any:
        value = strategy(self._chance)
        self._drawn.append(value)
        return value


class Machine:
    """The base class of the machines."""

    def __init_subclass__(cls) -> None:
        cls.TestCase = SimpleNamespace(settings=None)


def mark(**marks: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def marked(method: Callable[..., Any]) -> Callable[..., Any]:
        method.__dict__.update(marks)
        return method

    return marked


def stand_in() -> None:
    """Have the machines import the above in place of Hypothesis."""
    hypothesis, strategies, stateful = (ModuleType(name) for name in ("hypothesis", "strategies", "stateful"))
    hypothesis.__dict__.update(
        strategies=strategies, stateful=stateful, settings=lambda *_, **__: None, HealthCheck=(), Phase=SimpleNamespace(
            explicit=0, reuse=0, generate=0, shrink=0
        ),
    )  # fmt: skip
    strategies.__dict__.update(
        integers=integers, booleans=booleans, sampled_from=sampled_from, lists=lists, sets=sets,
        data=lambda: None, DataObject=Data,
    )  # fmt: skip
    stateful.__dict__.update(
        RuleBasedStateMachine=Machine, rule=lambda **drawn: mark(rule=drawn),
        initialize=lambda **drawn: mark(begins=drawn), invariant=lambda: mark(always=True),
        precondition=lambda holds: mark(holds=holds),
    )  # fmt: skip
    sys.modules |= {"hypothesis": hypothesis, "hypothesis.strategies": strategies, "hypothesis.stateful": stateful}


# --- histories ---------------------------------------------------------------------------------------------------


class Kind:
    """A machine with its rules."""

    def __init__(self, name: str) -> None:
        module, _, there = name.partition(".")
        self.machine = getattr(importlib.import_module(module), there)
        methods = {each: getattr(self.machine, each) for each in dir(self.machine)}
        self.rules = {name: each for name, each in methods.items() if hasattr(each, "rule")}
        self.begins = [name for name, each in methods.items() if hasattr(each, "begins")]
        self.invariants = [each for each in methods.values() if hasattr(each, "always")]

    def steps(self, chance: random.Random) -> Iterable[Step]:
        """Yield the steps of a history without end. Each prefers other rules, so that some rarely occur in it."""
        names = [*self.rules]
        weights = [*accumulate(chance.random() ** 2 for _ in names)]
        for name in self.begins:
            yield name, chance.getrandbits(32)
        while True:
            yield chance.choices(names, cum_weights=weights)[0], chance.getrandbits(32)


def run(kind: Kind, steps: Iterable[Step], longest: int, report: Callable[[str], None] | None = None) -> list[Step]:
    """Run a history of at most so many steps; return those that were possible. Raises what a check raises.

    The error has the steps as `steps`.
    """
    machine, done, idle = kind.machine(), [], 0
    try:
        for name, seed in steps:
            method = getattr(kind.machine, name)
            if hasattr(method, "holds") and not method.holds(machine):
                idle += 1
                if idle > NOTHING_TO_DO:
                    break
                continue
            idle = 0
            done.append((name, seed))
            chance, drawn = random.Random(seed), []
            wanted = method.rule if hasattr(method, "rule") else method.begins
            arguments = {
                each: strategy(chance) if strategy else Data(chance, drawn) for each, strategy in wanted.items()
            }
            try:
                method(machine, **arguments)
            finally:
                if report is not None:
                    given = [f"{each}={value!r}" for each, value in arguments.items() if type(value) is not Data]
                    report(f"{name}({', '.join([*given, *map(repr, drawn)])})")
            for check in kind.invariants:
                check(machine)
            if len(done) >= longest:
                break
        machine.teardown()
    except Exception as error:
        error.steps = done  # type: ignore[attr-defined]
        raise
    finally:
        shutil.rmtree(machine.path, ignore_errors=True)
    return done


def history(kind: Kind, name: str) -> tuple[Iterable[Step], int]:
    """Return the steps of a history, without end, and how many of them are to be done."""
    chance = random.Random(name)
    longest = chance.randrange(LONGEST // 4, LONGEST + 1)
    return kind.steps(chance), longest


def fails(kind: Kind, steps: Sequence[Step]) -> bool:
    try:
        run(kind, steps, len(steps))
    except Exception:
        return True
    return False


def shortened(kind: Kind, steps: list[Step]) -> list[Step]:
    """Leave steps out, as many as can be without the history succeeding."""
    size, tries = len(steps) // 2, 0
    while size and tries < SHORTER:
        at = len(kind.begins)
        while at < len(steps) and tries < SHORTER:
            fewer = steps[:at] + steps[at + size :]
            tries += 1
            if fails(kind, fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


# --- many of them ------------------------------------------------------------------------------------------------


def prepare(machine: str) -> Kind:
    stand_in()
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    return Kind(machine)


_kind: Kind | None = None


def some(machine: str, seed: str, first: int) -> tuple[int, str]:
    """Run some histories; return how many steps that were, and the name of the first that failed."""
    global _kind
    _kind = _kind or prepare(machine)
    steps = 0
    for number in range(first, first + AT_ONCE):
        try:
            steps += len(run(_kind, *history(_kind, f"{seed}/{number}")))
        except Exception:
            return steps, f"{seed}/{number}"
    return steps, ""


def explain(machine: str, name: str) -> None:
    """Run a history again, and print it as short as it can be if it fails."""
    kind = prepare(machine)
    try:
        run(kind, *history(kind, name), print)
    except Exception as error:
        steps = shortened(kind, error.steps)  # type: ignore[attr-defined]
    else:
        print(f"history {name} succeeds")
        return
    print(f"\nhistory {name} fails; {len(steps)} steps are enough:\n")
    try:
        run(kind, steps, len(steps), lambda text: print("   ", text))
    except Exception:
        traceback.print_exc(file=sys.stdout)
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="test_keyed_machine.KeyedMachine", help="module and class")
    parser.add_argument("--steps", type=int, default=100_000, help="how many steps, over all histories")
    parser.add_argument("--seed", default=f"{time.time_ns():x}", help="names the histories (default: the time)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many run at a time")
    parser.add_argument("--history", metavar="SEED/NUMBER", help="run this one alone, and print its steps")
    options = parser.parse_args()
    if options.history:
        explain(options.machine, options.history)
        return
    print(f"{options.machine}, seed {options.seed}: {options.steps:,} steps", flush=True)
    done, began, shown, failed = 0, time.monotonic(), time.monotonic(), ""
    firsts = count(0, AT_ONCE)
    with ProcessPoolExecutor(options.processes) as pool:
        running = {pool.submit(some, options.machine, options.seed, next(firsts)) for _ in range(options.processes)}
        while running and not failed:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for each in finished:
                steps, bad = each.result()
                done, failed = done + steps, failed or bad
                if done < options.steps:
                    running.add(pool.submit(some, options.machine, options.seed, next(firsts)))
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{done:,} steps after {shown - began:.0f} s", flush=True)
    print(f"{done:,} steps in {time.monotonic() - began:.0f} s, seed {options.seed}: {'FAILED' if failed else 'ok'}")
    if failed:
        explain(options.machine, failed)


if __name__ == "__main__":
    main()
