"""The pages in the menu."""

from typing import Final

# section, then: name, path, key behind `g`, icon
NAVIGATION: Final = (
    (
        "Watch",
        (
            ("Overview", "/", "o", "dashboard"),
            ("Topics", "/topics", "t", "topic"),
            ("Clients", "/clients", "c", "lan"),
            ("Counter", "/counter", "k", "speed"),
        ),
    ),
    (
        "Data",
        (
            ("Messages", "/messages", "m", "mail_outline"),
            ("Dead letters", "/dead", "d", "unsubscribe"),
            ("Pipelines", "/pipelines", "p", "account_tree"),
        ),
    ),
    (
        "Cluster",
        (
            ("Nodes", "/nodes", "n", "dns"),
            ("Lookup", "/lookup", "l", "travel_explore"),
            ("Settings", "/settings", "s", "tune"),
            ("Audit", "/audit", "a", "history"),
        ),
    ),
)
LAPWING_ONLY: Final = frozenset({"/settings", "/dead"})  # pages that need lapwing's nsqd
