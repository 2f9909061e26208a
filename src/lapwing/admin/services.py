"""Build the parts of nsqadmin from its options. The API and the pages work with these parts."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lapwing.admin.access import AccessRules, Logins, parse_networks, read_passwords
from lapwing.admin.actions import Actions
from lapwing.admin.audit import Audit
from lapwing.admin.graphite import Graphite
from lapwing.admin.notifications import Notifier
from lapwing.admin.options import AdminOptions
from lapwing.admin.poller import Poller
from lapwing.admin.running_options import RunningOptions
from lapwing.admin.samples import Recorder
from lapwing.client.admin import Admin
from lapwing.client.alarms import AlarmLimits
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import DaemonHttp
from lapwing.errors import ConfigError
from lapwing.names import NSQ_VERSION
from lapwing.net.client import bearer
from lapwing.net.logs import Level, Log
from lapwing.net.sockets.listen import split
from lapwing.net.sockets.tls import client_context

SECOND: Final = 1_000_000_000


@dataclass(slots=True)
class Services:
    """The parts that the pages and the API share."""

    options: AdminOptions
    cluster_client: ClusterClient
    poller: Poller
    recorder: Recorder
    actions: Actions
    access: AccessRules
    graphite: Graphite
    running_options: RunningOptions
    brokers: Admin
    notifier: Notifier | None

    @property
    def base(self) -> str:
        """The prefix of all paths, empty for the root."""
        return self.options.base


def build(options: AdminOptions, log: Log) -> Services:
    """Build every part. Raises `ConfigError` for options that cannot work."""
    _check(options)
    try:
        tls = client_context(
            root_ca_file=options.http_client_tls_root_ca_file,
            cert=options.http_client_tls_cert,
            key=options.http_client_tls_key,
            insecure=options.http_client_tls_insecure_skip_verify,
        )
    except OSError as error:
        raise ConfigError(f"failed to read the TLS files: {error}") from error
    http = DaemonHttp(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        tls=tls,
        user_agent=f"nsqadmin/v{NSQ_VERSION}",
        auth_secret=auth_secret(options),
    )
    brokers = Admin(
        options.nsqd_http_addresses,
        lookupd=options.lookupd_http_addresses,
        http=http,
        patience=options.http_client_request_timeout / SECOND,
    )
    cluster_client = brokers.cluster
    access = AccessRules(
        acl_header=options.acl_http_header,
        admin_users=options.admin_users,
        trusted_proxies=parse_networks(options.trusted_proxies),
        read_only=options.read_only,
        require_user=options.require_user,
        logins=Logins(read_passwords(options.password_file)) if options.password_file else None,
    )
    graphite = Graphite(
        options.graphite_url,
        options.proxy_graphite,
        options.statsd_interval / SECOND,
        options.statsd_prefix,
        options.statsd_counter_format,
        options.statsd_gauge_format,
    )
    graphite.check()
    notifier = Notifier(options.notification_http_endpoint) if options.notification_http_endpoint else None

    def set_level(level: int) -> None:
        log.level = Level(level)

    poller = Poller(cluster_client, limits=AlarmLimits(age=options.alarm_age / SECOND, depth=options.alarm_depth))
    return Services(
        options,
        cluster_client,
        poller,
        Recorder(http, poller, records=not options.read_only),
        Actions(brokers, Audit(options.audit_file), notifier),
        access,
        graphite,
        RunningOptions(options, cluster_client, on_level=set_level),
        brokers,
        notifier,
    )


def _check(options: AdminOptions) -> None:
    if bool(options.lookupd_http_addresses) == bool(options.nsqd_http_addresses):
        given = (
            "use --nsqd-http-address or --lookupd-http-address, not both"
            if options.nsqd_http_addresses
            else "--nsqd-http-address or --lookupd-http-address required"
        )
        raise ConfigError(given)
    if bool(options.http_client_tls_cert) != bool(options.http_client_tls_key):
        raise ConfigError(
            "--http-client-tls-key must be specified with --http-client-tls-cert, and the other way round"
        )
    for address in (*options.lookupd_http_addresses, *options.nsqd_http_addresses):
        _check_address(address)
    parse_networks([options.allow_config_from_cidr])
    if options.require_user and not can_name_users(options):
        raise ConfigError(
            "--require-user needs a way to name users: --password-file for the built-in login, or --trusted-proxy "
            f"for the proxy that sets {options.acl_http_header}"
        )


def auth_secret(options: AdminOptions) -> str:
    """Return the secret for nsqds that require one, from its file or the environment; empty for none."""
    secret = os.environ.get("LAPWING_AUTH_SECRET", "")
    if options.auth_secret_file:
        try:
            secret = Path(options.auth_secret_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"cannot read --auth-secret-file={options.auth_secret_file}: {reason}") from error
    if secret or options.auth_secret_file:
        try:
            bearer.credentials(secret)
        except ValueError as error:
            raise ConfigError(f"--auth-secret-file or LAPWING_AUTH_SECRET: {error}") from error
    return secret


def can_name_users(options: AdminOptions) -> bool:
    """Return whether any user can be known: by the built-in login, or by a proxy."""
    return bool(options.password_file or options.trusted_proxies)


def _check_address(address: str) -> None:
    parts = split(address)
    if parts is None:
        raise ConfigError(f"failed to resolve address ({address}) - expected host:port, missing port in address")
    try:
        socket.getaddrinfo(*parts)
    except OSError as error:
        raise ConfigError(f"failed to resolve address ({address}) - {error.strerror or error}") from error
