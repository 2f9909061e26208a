"""Airflow's event-driven scheduling by lapwing: an asset is updated by each message of a channel.

    trigger = MessageQueueTrigger(scheme="lapwing", topic="orders", channel="airflow", nsqd="127.0.0.1:4150")
    orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

    with DAG(dag_id="bill", schedule=[orders]):
        ...

Airflow finds the provider by itself where lapwing is installed.
"""

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow lists of the provider."""
    return {
        "package-name": "lapwing",
        "name": "lapwing",
        "description": "Messages of NSQ's protocol as events of assets.",
        "queues": ["lapwing.contrib.airflow.triggers.LapwingProvider"],
    }
