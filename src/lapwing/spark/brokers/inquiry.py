"""Questions to several daemons at once; one that is silent makes nobody wait, and is asked on in the background."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from lapwing.spark.brokers.http import PLANNING_SECONDS, BrokerAway, BrokerRefused

_PAUSE_SECONDS: Final = 1.0  # between two attempts in the background

Ask = Callable[[str], Any]


class _Question:
    """One question to one daemon, asked in a thread until there is an outcome."""

    def __init__(self, address: str, what: str) -> None:
        self.address = address
        self.what = what
        self.answered = threading.Event()
        self.outcome: Any = None
        self.reason: Exception = BrokerAway(
            address, f"no answer within {PLANNING_SECONDS:g} s; it is asked again in the background"
        )


class Inquiry:
    """Asks daemons, and remembers which of them are silent.

    A daemon that does not answer in time counts as away. It is not asked another question until the one that it owes
    an answer to has an outcome; the answer is then given to whoever asks that question next.
    """

    def __init__(self) -> None:
        self._silent: dict[str, _Question] = {}

    def ask_all(self, addresses: Sequence[str], what: str, ask: Ask) -> list[tuple[str, Any]]:
        """Return the answer of each daemon, or why there is none, after at most `PLANNING_SECONDS`.

        `what` names the question. `ask` is called in other threads, also later, as long as this object lives. Raises
        what it raises, unless that is `BrokerAway` or `BrokerRefused`.
        """
        asked = [self._silent.get(address) or self._begin(address, what, ask) for address in addresses]
        deadline = time.monotonic() + PLANNING_SECONDS
        for question in asked:
            if self._silent.get(question.address) is not question:
                question.answered.wait(max(deadline - time.monotonic(), 0))
        found = [(question.address, self._outcome(question, what, ask, deadline)) for question in asked]
        for _, outcome in found:
            if isinstance(outcome, Exception) and not isinstance(outcome, BrokerAway | BrokerRefused):
                raise outcome
        return found

    def _begin(self, address: str, what: str, ask: Ask) -> _Question:
        question = _Question(address, what)
        threading.Thread(
            target=_ask_on, args=(question, ask, weakref.ref(self)), name=f"asking {address}", daemon=True
        ).start()
        return question

    def _outcome(self, question: _Question, what: str, ask: Ask, deadline: float) -> Any:
        if not question.answered.is_set():
            self._silent[question.address] = question
            return question.reason
        self._silent.pop(question.address, None)
        if question.what == what:
            return question.outcome
        again = self._begin(question.address, what, ask)
        again.answered.wait(max(deadline - time.monotonic(), 0))
        return self._outcome(again, what, ask, deadline)


def _ask_on(question: _Question, ask: Ask, asker: "weakref.ref[Inquiry]") -> None:
    """Ask until there is an answer, or a failure that comes at once; no longer than somebody wants to know."""
    while True:
        began = time.monotonic()
        try:
            question.outcome = ask(question.address)
            break
        except BrokerAway as error:
            question.outcome = question.reason = error
            if time.monotonic() - began < PLANNING_SECONDS:
                break
        except Exception as error:
            question.outcome = error  # raised where the question was asked
            break
        if asker() is None:
            break
        time.sleep(_PAUSE_SECONDS)
    question.answered.set()
