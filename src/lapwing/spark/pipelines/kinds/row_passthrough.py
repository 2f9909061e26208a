"""Carries rows past a query that does not concern them, so that one pass over the input gives both results.

A union of "the query over the good rows" and "the bad rows" reads and parses everything twice: plans are trees, and
Spark shares no part of one. Where a query looks at each row by itself (projections and filters), the rows it shall not
see can go through it instead: every filter lets them pass, and no expression is computed for them.

This works on Spark's resolved plan, for which there is no public interface; a query it cannot do that with gets None.
"""

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAMES_ONLY: Final = ("SubqueryAlias", "View")


def carried(result: "DataFrame", good: "DataFrame", everything: "DataFrame", column: str) -> "DataFrame | None":
    """Return the rows of `result`, and with them those of `everything` that have a value in `column`.

    `result` was made of `good`, and `good` of `everything`, by leaving out just these rows and that column. What the
    other columns hold of these rows means nothing. None when `result` is not made row by row.
    """
    session: Any = result.sparkSession
    try:
        plan = _Carrier(session._jvm, good, everything, column).over(_plan(result))
        if plan is None:
            return None
        dataset = session._jvm.org.apache.spark.sql.classic.Dataset
        return type(result)(dataset.ofRows(session._jsparkSession, plan), session)
    except (Py4JError, TypeError):  # TypeError: a class that is not where it was
        return None


class _Carrier:
    def __init__(self, jvm: Any, good: "DataFrame", everything: "DataFrame", column: str) -> None:
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._plans = jvm.org.apache.spark.sql.catalyst.plans.logical
        self._python = jvm.org.apache.spark.api.python.PythonUtils
        self._good, self._everything = _plan(good), _plan(everything)
        self._mark = next(each for each in _each(self._everything.output()) if each.name() == column)

    def over(self, plan: Any) -> Any:
        """Return the plan with the rows in it; None when one of its steps does more than look at single rows."""
        if plan.equals(self._good):
            return self._everything
        kind = plan.nodeName()
        if kind in _NAMES_ONLY:
            return self.over(plan.children().apply(0))
        if kind not in ("Project", "Filter") or not all(self._by_row(each) for each in _each(plan.expressions())):
            return None
        below = self.over(plan.children().apply(0))
        if below is None:
            return None
        if kind == "Filter":
            passes = self._expressions.IsNotNull(self._mark)
            return self._plans.Filter(self._expressions.Or(passes, plan.condition()), below)
        columns = [self._guarded(each) for each in _each(plan.projectList())]
        return self._plans.Project(self._python.toSeq([*columns, self._mark]), below)

    def _guarded(self, named: Any) -> Any:
        """Return a column that is not computed for the carried rows; one that is only passed on stays as it is."""
        if named.nodeName() != "Alias":
            return named
        value = named.children().apply(0)
        ours = self._expressions.IsNull(self._mark)
        nothing = self._expressions.Literal(None, value.dataType())
        return named.withNewChildren(self._python.toSeq([self._expressions.If(ours, value, nothing)]))

    def _by_row(self, expression: Any) -> bool:
        """Return whether it is computed by Spark itself, where it is asked for: Python would be called for all rows."""
        kind = expression.getClass().getSimpleName()
        if kind.startswith("Python") or "Subquery" in kind or kind in ("Exists", "ListQuery"):
            return False
        return all(self._by_row(each) for each in _each(expression.children()))


def _plan(frame: "DataFrame") -> Any:
    java: Any = frame._jdf
    return java.queryExecution().analyzed()


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
