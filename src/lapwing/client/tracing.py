"""Whether producers and consumers are traced: only where the program itself uses OpenTelemetry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapwing.client.telemetry import Telemetry


def telemetry(*, child: bool = False) -> Telemetry | None:
    """Return what traces a producer or consumer; None where the program has not set up OpenTelemetry.

    A program that has set it up has imported it, so that others do not pay for the import.
    """
    if not sys.modules.keys() & {"opentelemetry.trace", "opentelemetry.metrics"}:
        return None
    from lapwing.client.telemetry import configured

    return configured(child=child)
