"""The hot byte loops, twice: compiled where a compiler was, else in Python, which `LAPWING_PURE=1` asks for."""

import os

from lapwing.kernel import pure as pure
from lapwing.kernel.pure import *  # noqa: F403 - all of one twin
from lapwing.kernel.pure_buffers import *  # noqa: F403
from lapwing.kernel.tail import CHUNK_BYTES as CHUNK_BYTES
from lapwing.kernel.tail import SPACE_CHECK as SPACE_CHECK
from lapwing.kernel.tail import Blocks as Blocks
from lapwing.kernel.tail import Extent as Extent
from lapwing.kernel.tail import Tail as Tail

try:
    if os.environ.get("LAPWING_PURE"):
        raise ImportError("the pure twin was asked for")
    from lapwing.kernel._speed import *  # noqa: F403 - the other one, in its place
    from lapwing.kernel._tail import Blocks as Blocks
    from lapwing.kernel._tail import Extent as Extent
    from lapwing.kernel._tail import Tail as Tail

    COMPILED = True
except ImportError:
    COMPILED = False
