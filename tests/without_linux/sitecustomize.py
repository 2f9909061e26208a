"""Python without what Linux alone has: with this folder in PYTHONPATH, programs run as on macOS, as far as that goes.

There is no /proc and no /sys, no prctl, no epoll, and none of the functions and constants that macOS lacks. The kernel
and the C library are still those of Linux, and links in /proc can be read: that is how tests find out which file a
descriptor is of.
"""

import errno
import os
import sys
from importlib import import_module

GONE = ("/proc", "/sys")
LACKING = {
    "select": ("epoll",),  # first: the standard library looks for it as it is imported
    "os": (
        "copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "fdatasync", "getrandom", "memfd_create",
        "pidfd_open", "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "setns", "splice",
        "unshare",
    ),
    "socket": ("AF_NETLINK", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "TCP_QUICKACK", "TCP_USER_TIMEOUT"),
    "time": ("CLOCK_BOOTTIME",),
}  # fmt: skip
NOT_BUILT = ("lapwing.net.sockets._sockets",)
NOT_IN_LIBC = ("prctl", "malloc_trim")


def gone(path: object) -> bool:
    """Whether a path is one that macOS does not have."""
    name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return name.startswith(tuple(f"{root}/" for root in GONE)) or name in GONE


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Fail as macOS does, before Python does what was asked for."""
    if event in ("open", "os.listdir", "os.scandir") and gone(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    if event == "import" and arguments[0] in NOT_BUILT:
        raise ModuleNotFoundError(f"No module named {arguments[0]!r}", name=str(arguments[0]))
    if event == "ctypes.dlsym" and arguments[1] in NOT_IN_LIBC:
        raise AttributeError(arguments[1])


def checked(function):  # type: ignore[no-untyped-def]
    """Return a function of `os` that knows no path of Linux."""

    def call(path, *arguments, **named):  # type: ignore[no-untyped-def]
        if gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *arguments, **named)

    return call


for module, names in LACKING.items():
    for name in names:
        if hasattr(import_module(module), name):
            delattr(import_module(module), name)
for name in ("stat", "lstat", "statvfs"):
    setattr(os, name, checked(getattr(os, name)))
sys.addaudithook(refuse)
