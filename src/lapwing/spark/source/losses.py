"""Messages that a query should have read and that are gone: which losses end the query, and which are only logged."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from lapwing.errors import LapwingError
from lapwing.spark.options import SourceOptions
from lapwing.spark.source.offsets import Loss

logger = logging.getLogger(__name__)

ADVICE: Final = " (failOnDataLoss=false continues with what is there; a stream also with acceptLoss=true, once)"


class DataLoss(LapwingError):
    """Messages that the query has not read are gone."""

    def __init__(self, losses: Sequence[str]) -> None:
        super().__init__("; ".join(losses) + ADVICE)


def is_tolerated(loss: Loss, options: SourceOptions) -> bool:
    """Return whether the query continues after such a loss.

    A pattern names whatever topics there are: one that is deleted or created again is part of its life.
    """
    return not options.fail_on_data_loss or (loss.deleted and options.pattern is not None)


def report(losses: Iterable[Loss], options: SourceOptions, *, accepted: bool = False) -> None:
    """Log the losses that are tolerated or accepted; raise `DataLoss` for all others together."""
    fatal = []
    for loss in losses:
        if accepted or is_tolerated(loss, options):
            logger.warning("data loss: %s", loss.text)
        else:
            fatal.append(loss.text)
    if fatal:
        raise DataLoss(fatal)
