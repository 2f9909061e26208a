"""The options of nsqadmin: those of NSQ, then those that lapwing adds."""

from dataclasses import dataclass

from lapwing.net.options import BOOLEAN, DURATION, LEVEL, STRINGS, option


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """All options; see `docs/admin.md`."""

    acl_http_header: str = option(
        "X-Forwarded-User", "request header that names the user; ignored unless a --trusted-proxy sends it"
    )
    admin_users: tuple[str, ...] = option(
        (), "user who may change things; none given: everybody may", kind=STRINGS, flag="admin-user", key="admin_users"
    )
    allow_config_from_cidr: str = option(
        "127.0.0.1/8", "network of clients that may use /config; empty: all clients may"
    )
    base_path: str = option("/", "prefix of all paths")
    config: str = option("", "path to a TOML config file", key="")
    dev_static_dir: str = option("", "serve static files from this directory (development)")
    graphite_url: str = option("", "URL of Graphite: pages link to its graphs; empty: no links")
    http_address: str = option("0.0.0.0:4171", "`host:port` to listen on")
    http_client_connect_timeout: int = option("2s", "time to connect to an nsqd or nsqlookupd", kind=DURATION)
    http_client_request_timeout: int = option("5s", "time for a whole request to an nsqd or nsqlookupd", kind=DURATION)
    http_client_tls_cert: str = option("", "certificate to show to nsqd and nsqlookupd")
    http_client_tls_key: str = option("", "key of that certificate")
    http_client_tls_insecure_skip_verify: bool = option(
        False, "accept any certificate of nsqd and nsqlookupd; false: check it", kind=BOOLEAN
    )
    http_client_tls_root_ca_file: str = option(
        "", "file of the certificate authorities to trust; empty: those of the system"
    )
    log_level: int = option("info", "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqadmin] ", "beginning of every log line")
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "`host:port` of an nsqlookupd", kind=STRINGS, flag="lookupd-http-address", key="nsqlookupd_http_addresses"
    )
    notification_http_endpoint: str = option("", "URL to POST every change to; empty: none")
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "`host:port` of an nsqd, instead of nsqlookupds",
        kind=STRINGS,
        flag="nsqd-http-address",
        key="nsqd_http_addresses",
    )
    proxy_graphite: bool = option(
        False, "fetch graphs of Graphite through nsqadmin; false: browsers fetch them", kind=BOOLEAN
    )
    statsd_counter_format: str = option("stats.counters.%s.count", "how statsd names a counter in Graphite")
    statsd_gauge_format: str = option("stats.gauges.%s", "how statsd names a gauge in Graphite")
    statsd_interval: int = option("1m", "time between nsqd's pushes to statsd; must be nsqd's", kind=DURATION)
    statsd_prefix: str = option("nsq.%s", "prefix of nsqd's names in statsd, %s being the host; must be nsqd's")
    verbose: bool = option(False, "does nothing; kept for old scripts", kind=BOOLEAN, key="")
    version: bool = option(False, "print the version and exit", kind=BOOLEAN, key="")

    alarm_age: int = option(
        "5m", "raise an alarm if the oldest message of a channel has waited longer than this", kind=DURATION
    )
    alarm_depth: int = option(100, "raise an alarm if a channel grows and has at least this many messages")
    allowed_hosts: tuple[str, ...] = option(
        (),
        "name under which browsers reach nsqadmin; IP addresses, names without a dot and this machine's own names "
        "need none; * allows all",
        kind=STRINGS,
        flag="allowed-host",
        key="allowed_hosts",
    )
    audit_file: str = option(
        "", "file to append every change to, as JSON lines with user and time; empty: keep the last 1000 in memory"
    )
    auth_secret_file: str = option(
        "",
        "file with the secret that nsqds with --auth-http-address require; LAPWING_AUTH_SECRET in the environment does "
        "the same",
    )
    hash_password: str = option(
        "", "print the line of this user for the password file, with the password from stdin, and exit", key=""
    )
    password_file: str = option(
        "", "file with lines of name:hash (see --hash-password): users have to log in; empty: no login"
    )
    read_only: bool = option(False, "allow no changes; false: users or --admin-user may change things", kind=BOOLEAN)
    require_user: bool = option(
        False,
        "show nothing to users that neither the ACL header nor the login names; false: everybody may read",
        kind=BOOLEAN,
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "network of a proxy (such as 127.0.0.1/32) that sets the ACL header and the X-Forwarded headers; "
        "none given: these headers are ignored",
        kind=STRINGS,
        flag="trusted-proxy",
        key="trusted_proxies",
    )

    @property
    def base(self) -> str:
        """The base path with a leading slash and no trailing one; empty for the root."""
        return "/" + stripped if (stripped := self.base_path.strip("/")) else ""
