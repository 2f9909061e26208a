"""Messages that the brokers have published, for comparison with the archived ones."""

from lapwing.errors import ConfigError
from lapwing.spark.directory import Directory, ask_all
from lapwing.spark.http import BrokerAway, BrokerRefused, call
from lapwing.spark.options import BrokerAccess


def published(nsqd: tuple[str, ...], lookupd: tuple[str, ...] = ()) -> dict[tuple[str, int, str], tuple[int, int]]:
    """(first, next) of every log of these brokers, by topic, node and identity; all of them have to answer."""
    access = BrokerAccess(nsqd=nsqd, lookupd=lookupd)
    try:
        addresses = Directory(access).find(departed=True)
    except BrokerAway as error:
        raise ConfigError(f"{error}; is nsqlookupd running?") from error
    found = {}
    for _, answer in ask_all(addresses, lambda address: call(address, access, "GET", "/log/offsets")):
        if isinstance(answer, BrokerAway | BrokerRefused):
            raise ConfigError(f"{answer}; is this nsqd running?")
        assert isinstance(answer, dict)
        for topic in answer["topics"]:
            found[topic["topic"], int(answer["node_id"]), topic["log_id"]] = (topic["first"], topic["next"])
    return found
