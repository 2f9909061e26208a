"""The HTTP client of nsqd: how it calls nsqlookupd and auth servers."""

from __future__ import annotations

from typing import Final

from lapwing.broker.settings.options import Options
from lapwing.net.client.asynchronous import NSQ_ACCEPT, HttpClient

_MAX_ANSWER: Final = 5 << 20  # bytes


def http_client(options: Options, *, max_answer: int = _MAX_ANSWER) -> HttpClient:
    """Return a client with the time-outs and the certificate authority of the options."""
    return HttpClient(
        connect_timeout=options.http_client_connect_timeout / 1e9,
        request_timeout=options.http_client_request_timeout / 1e9,
        headers={"Accept": NSQ_ACCEPT, "User-Agent": "nsqd"},
        ca_file=options.tls_root_ca_file,
        max_answer=max_answer,
        keep=False,
        follow_redirects=True,
        upgrade_to_tls=True,
    )
