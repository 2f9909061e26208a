"""A channel: a cursor over the log of its topic, and what is unfinished behind it.

`channel.Channel` is a reader, a `ledger` that knows where each message is, subscriptions, settings and counters;
`delivery` shares what is ready among consumers, `keys` chooses where it is delivered by key. `ledger`, `subscription`,
`passed_by`, `keys` and `delivery` are compiled where a compiler was, from the same files: then they come from `_ledger`
and so on; the `.pxd` files add types.
"""

import sys
from contextlib import suppress
from importlib import import_module

from lapwing import kernel

if kernel.COMPILED:
    for _name in ("ledger", "subscription", "passed_by", "keys", "delivery"):
        with suppress(ImportError):
            sys.modules[f"{__name__}.{_name}"] = import_module(f"{__name__}._{_name}")
