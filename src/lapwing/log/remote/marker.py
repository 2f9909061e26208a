"""The file `remote` of a data path: which remote log it belongs to, and how far the two are known to agree."""

import json
import os
from typing import Final

from lapwing.log.disk import DISK
from lapwing.records import dataclass

FILE: Final = "remote"


@dataclass(frozen=True, slots=True)
class Marker:
    """The note of the last process that used the data path and the remote log together."""

    place: str  # of the remote log
    epoch: int  # in which it owned the log
    run: str  # the run of the machine, and the directory: in another run the disk may lack what was not synced
    clean: str = ""  # the nonce of the record that released the log, when both held the same and the disk was synced

    def save(self, path: str) -> None:
        """Write the file, so that it survives a power loss. Raises `OSError`."""
        found = {"place": self.place, "epoch": self.epoch, "run": self.run, "clean": self.clean}
        DISK.replace(os.path.join(path, FILE), [json.dumps(found).encode()], sync=True)


def load(path: str) -> Marker | None:
    """Return the marker of a data path; None if there is none, or it is not understood."""
    try:
        found = json.loads(DISK.read(os.path.join(path, FILE)))
        return Marker(str(found["place"]), int(found["epoch"]), str(found["run"]), str(found["clean"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
