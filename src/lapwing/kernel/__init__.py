"""The hot byte loops, twice: compiled where a compiler was, else in Python, which `LAPWING_PURE=1` asks for."""

import os

from lapwing.kernel import pure
from lapwing.kernel.pure import BAD_COUNT, BAD_SIZE, HEAD, MESSAGE, SHORT, SURPLUS, TOO_BIG, crc32c
from lapwing.kernel.pure_buffers import Buffer
from lapwing.kernel.pure_headers import BAD_HEADERS, HEADED, HEADERS_TOO_BIG, MAX_HEADERS, strip_headers

try:
    if os.environ.get("LAPWING_PURE"):
        raise ImportError("the pure twin was asked for")
    from lapwing.kernel._speed import (
        acked_sequences,
        count_headers,
        decode_columns,
        decode_headed,
        decode_messages,
        entry_replies,
        fin_run,
        find_rows,
        finish,
        finish_sequences,
        fins_of,
        frame_bodies,
        frame_headed,
        frame_headed_pubs,
        frame_mpub,
        frame_one,
        frame_pubs,
        frame_xadds,
        id_replies,
        is_pairs,
        known_sequences,
        message_ids,
        mpub_run,
        publish_times,
        row_places,
        scan_frames,
        split_words,
        take_frames,
        take_words,
        with_attempts,
        with_headers,
        xadd_run,
    )

    COMPILED = True
except ImportError:
    from lapwing.kernel.pure import (
        decode_columns,
        decode_messages,
        fin_run,
        finish,
        fins_of,
        frame_bodies,
        frame_mpub,
        frame_one,
        frame_pubs,
        mpub_run,
        scan_frames,
        take_frames,
        with_attempts,
    )
    from lapwing.kernel.pure_headers import (
        count_headers,
        decode_headed,
        find_rows,
        frame_headed,
        frame_headed_pubs,
        message_ids,
        row_places,
        with_headers,
    )
    from lapwing.kernel.pure_resp import (
        acked_sequences,
        entry_replies,
        finish_sequences,
        frame_xadds,
        id_replies,
        is_pairs,
        known_sequences,
        publish_times,
        split_words,
        take_words,
        xadd_run,
    )

    COMPILED = False

__all__ = [
    "BAD_COUNT",
    "BAD_HEADERS",
    "BAD_SIZE",
    "COMPILED",
    "HEAD",
    "HEADED",
    "HEADERS_TOO_BIG",
    "MAX_HEADERS",
    "MESSAGE",
    "SHORT",
    "SURPLUS",
    "TOO_BIG",
    "Buffer",
    "acked_sequences",
    "count_headers",
    "crc32c",
    "decode_columns",
    "decode_headed",
    "decode_messages",
    "entry_replies",
    "fin_run",
    "find_rows",
    "finish",
    "finish_sequences",
    "fins_of",
    "frame_bodies",
    "frame_headed",
    "frame_headed_pubs",
    "frame_mpub",
    "frame_one",
    "frame_pubs",
    "frame_xadds",
    "id_replies",
    "is_pairs",
    "known_sequences",
    "message_ids",
    "mpub_run",
    "publish_times",
    "pure",
    "row_places",
    "scan_frames",
    "split_words",
    "strip_headers",
    "take_frames",
    "take_words",
    "with_attempts",
    "with_headers",
    "xadd_run",
]
