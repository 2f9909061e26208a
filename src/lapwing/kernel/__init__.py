"""The hot byte loops, twice: compiled where a compiler was, else in Python, which `LAPWING_PURE=1` asks for."""

import os

from lapwing.kernel import pure as pure
from lapwing.kernel.pure import *  # noqa: F403 - all of one twin
from lapwing.kernel.pure_buffers import *  # noqa: F403
from lapwing.kernel.pure_tail import CHUNK_BYTES as CHUNK_BYTES
from lapwing.kernel.pure_tail import SPACE_CHECK as SPACE_CHECK
from lapwing.kernel.pure_tail import Blocks as Blocks
from lapwing.kernel.pure_tail import Extent as Extent
from lapwing.kernel.pure_tail import Tail as Tail

try:
    if os.environ.get("LAPWING_PURE"):
        raise ImportError("the pure twin was asked for")
    from lapwing.kernel._road import Blocks as Blocks
    from lapwing.kernel._road import Extent as Extent
    from lapwing.kernel._road import Tail as Tail
    from lapwing.kernel._speed import *  # noqa: F403 - the other one, in its place

    COMPILED = True
except ImportError:
    COMPILED = False
