"""Topics and channels: a synchronous machine; bytes and the time in, bytes out.

`ledger`, `subscription` and `delivery` are compiled where a compiler was, from the same files: then they come from
`_ledger`, `_subscription` and `_delivery`, whose `.pxd` files add the types.
"""

import sys
from contextlib import suppress
from importlib import import_module

from lapwing import kernel

if kernel.COMPILED:
    for _name in ("ledger", "subscription", "delivery"):
        with suppress(ImportError):
            sys.modules[f"{__name__}.{_name}"] = import_module(f"{__name__}._{_name}")
