"""Pipelines written in Python.

    from lapwing.spark.pipelines.python import pipeline

    @pipeline(topics="orders", to="orders.large", schema="id bigint, amount double")
    def large_orders(orders):
        return orders.where("amount > 1000").select("id", "amount")

`lapwing pipeline run orders.py` runs every such function of a file. It gets the DataFrame that SQL knows as `input`
(the fields of the JSON, and `_topic`, `_node`, `_sequence`, `_id`, `_timestamp`, `_headers`, `_size`) and returns one;
all settings of `transform` but `sql` can be given.
"""

from collections.abc import Callable
from typing import Any

defined: list[tuple[Callable[[Any], Any], dict[str, Any]]] = []


def pipeline(**settings: Any) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Make a pipeline of a function from DataFrame to DataFrame."""

    def define(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        defined.append((function, settings))
        return function

    return define
