"""The options of nsqadmin: those of NSQ, then those that lapwing adds."""

from dataclasses import dataclass

from lapwing.net.options import BOOLEAN, DURATION, LEVEL, STRINGS, option


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """All options; see `docs/reference/admin.md`."""

    acl_http_header: str = option(
        "X-Forwarded-User", "take the user's name from this request header; ignored unless a --trusted-proxy sends it"
    )
    admin_users: tuple[str, ...] = option(
        (), "let this user change things; none given: everybody may", kind=STRINGS, flag="admin-user", key="admin_users"
    )
    allow_config_from_cidr: str = option(
        "127.0.0.1/8", "let clients of this network use /config; empty: all clients may"
    )
    base_path: str = option("/", "serve all pages below this path")
    config: str = option("", "read settings from this TOML file", key="")
    dev_static_dir: str = option("", "serve static files from this directory (development)")
    graphite_url: str = option("", "link to the graphs of Graphite at this URL; empty: no links")
    http_address: str = option("0.0.0.0:4171", "listen on this `host:port`")
    http_client_connect_timeout: int = option(
        "2s", "give up connecting to an nsqd or nsqlookupd after this time", kind=DURATION
    )
    http_client_request_timeout: int = option(
        "5s", "give up a request to an nsqd or nsqlookupd after this time", kind=DURATION
    )
    http_client_tls_cert: str = option("", "show this certificate to nsqd and nsqlookupd")
    http_client_tls_key: str = option("", "use this key with the certificate")
    http_client_tls_insecure_skip_verify: bool = option(
        False, "accept any certificate of nsqd and nsqlookupd; false: check it", kind=BOOLEAN
    )
    http_client_tls_root_ca_file: str = option(
        "", "trust the certificate authorities of this file; empty: those of the system"
    )
    log_level: int = option("info", "log lines of this level and above: debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqadmin] ", "begin every log line with this text")
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "ask the nsqlookupd at this `host:port`",
        kind=STRINGS,
        flag="lookupd-http-address",
        key="nsqlookupd_http_addresses",
    )
    notification_http_endpoint: str = option("", "send every change to this URL with POST; empty: to none")
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "watch the nsqd at this `host:port`, instead of asking nsqlookupds",
        kind=STRINGS,
        flag="nsqd-http-address",
        key="nsqd_http_addresses",
    )
    proxy_graphite: bool = option(
        False, "fetch graphs of Graphite through nsqadmin; false: browsers fetch them", kind=BOOLEAN
    )
    statsd_counter_format: str = option(
        "stats.counters.%s.count", "name counters in Graphite like this, as statsd does"
    )
    statsd_gauge_format: str = option("stats.gauges.%s", "name gauges in Graphite like this, as statsd does")
    statsd_interval: int = option(
        "1m", "expect nsqd's pushes to statsd at this interval; must be nsqd's", kind=DURATION
    )
    statsd_prefix: str = option(
        "nsq.%s", "expect this prefix of nsqd's names in statsd, %s being the host; must be nsqd's"
    )
    verbose: bool = option(False, "accepted for compatibility, without effect", kind=BOOLEAN, key="")
    version: bool = option(False, "print the version and exit", kind=BOOLEAN, key="")

    alarm_age: int = option(
        "5m", "raise an alarm if the oldest message of a channel has waited longer than this", kind=DURATION
    )
    alarm_depth: int = option(100, "raise an alarm if a channel grows and has at least this many messages")
    allowed_hosts: tuple[str, ...] = option(
        (),
        "answer browsers that use this name; IP addresses, names without a dot and this machine's own names "
        "need none; * allows all",
        kind=STRINGS,
        flag="allowed-host",
        key="allowed_hosts",
    )
    audit_file: str = option(
        "", "append every change to this file, as JSON lines with user and time; empty: keep the last 1000 in memory"
    )
    auth_secret_file: str = option(
        "",
        "read from this file the secret that nsqds with --auth-http-address require; LAPWING_AUTH_SECRET does the same",
    )
    hash_password: str = option(
        "", "print the line of this user for the password file, with the password from stdin, and exit", key=""
    )
    password_file: str = option(
        "", "require a login with the names and hashes of this file (see --hash-password); empty: no login"
    )
    read_only: bool = option(False, "allow no changes; false: users or --admin-user may change things", kind=BOOLEAN)
    require_user: bool = option(
        False,
        "show nothing to users that neither the ACL header nor the login names; false: everybody may read",
        kind=BOOLEAN,
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "trust proxies of this network (such as 127.0.0.1/32) with the ACL header and the X-Forwarded headers; "
        "none given: these headers are ignored",
        kind=STRINGS,
        flag="trusted-proxy",
        key="trusted_proxies",
    )

    @property
    def base(self) -> str:
        """The base path with a leading slash and no trailing one; empty for the root."""
        return "/" + stripped if (stripped := self.base_path.strip("/")) else ""
