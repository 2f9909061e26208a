"""Results of loads: as text, JSON or a picture."""

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lapwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution of times, in milliseconds."""

    what: str
    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one server."""

    load: str
    server: str
    messages: int  # acknowledged, or delivered if there are consumers
    size: int  # bytes of a body
    seconds: float
    own_cpu: float  # seconds
    server_cpu: float | None  # seconds; None where the process cannot be seen
    server_pid: int | None
    settings: dict[str, int]
    latency: Percentiles | None
    durability: str | None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def server_us(self) -> float | None:
        """CPU time of the server per message, in microseconds."""
        return None if self.server_cpu is None or not self.messages else self.server_cpu * 1e6 / self.messages

    @property
    def own_us(self) -> float:
        """CPU time of this process per message, in microseconds."""
        return self.own_cpu * 1e6 / self.messages if self.messages else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the result with derived figures."""
        return {**asdict(self), "messages_per_second": round(self.rate, 1),
                "megabytes_per_second": round(self.rate * self.size / 1e6, 3),
                "server_cpu_us_per_message": None if self.server_us is None else round(self.server_us, 4),
                "own_cpu_us_per_message": round(self.own_us, 4)}


def percentiles(times: "array[int]", what: str) -> Percentiles | None:
    """Return the distribution of `times` in ns, or None without any."""
    if not times:
        return None
    ordered = sorted(times)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6

    return Percentiles(what, at(0.50), at(0.99), at(0.999), ordered[-1] / 1e6)


def text(result: Result) -> str:
    """Return the result as text."""
    shown = ", ".join(f"{name} {value:,}" for name, value in result.settings.items())
    lines = [
        f"{result.load}: {result.messages:,} messages of {result.size:,} bytes in {result.seconds:.2f} s ({shown})",
        f"  {result.rate:>14,.0f} messages/s   {result.rate * result.size / 1e6:,.1f} MB/s",
    ]
    if result.latency is not None:
        times = result.latency
        lines.append(f"  {times.what}: p50 {times.p50:.3f} ms   p99 {times.p99:.3f} ms   "
                     f"p99.9 {times.p999:.3f} ms   max {times.max:.3f} ms")
    if result.server_us is None:
        lines.append("  server CPU     not visible (another machine or user); --pid gives the process")
    else:
        lines.append(f"  server CPU     {result.server_us:.3f} us per message (pid {result.server_pid})")
    lines.append(f"  our own CPU    {result.own_us:.3f} us per message")
    lines.append(f"  durability     {result.durability or 'not reported by this server'}")
    return "\n".join(lines)


def plot(results: Sequence[Result], path: str) -> None:
    """Draw rates, CPU per message and latencies side by side into an SVG or PNG file. Raises `ConfigError`."""
    if not path.endswith((".svg", ".png")):
        raise ConfigError(f"{path}: the picture's name must end in .svg or .png")
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [f"{result.load}\n{result.server}" for result in results]
    panels: list[tuple[str, list[float]]] = [("messages/s", [result.rate for result in results])]
    if any(result.server_us is not None for result in results):
        panels.append(("server CPU, us per message", [result.server_us or 0.0 for result in results]))
    timed = [result for result in results if result.latency is not None]
    figure, axes = pyplot.subplots(1, len(panels) + bool(timed), figsize=(4.5 * (len(panels) + bool(timed)), 4))
    try:
        row = list(axes) if hasattr(axes, "__len__") else [axes]
        for axis, (title, values) in zip(row, panels, strict=False):
            bars = axis.bar(names, values, color=["#2a7f9e", "#b0b7bd", "#d9a441"][: len(values)] or None, width=0.6)
            axis.bar_label(bars, labels=[f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values])
            axis.set_title(title)
            axis.margins(y=0.15)
        if timed:
            axis = row[-1]
            for result in timed:
                times = result.latency
                assert times is not None
                axis.plot(["p50", "p99", "p99.9", "max"], [times.p50, times.p99, times.p999, times.max], marker="o",
                          label=f"{result.load}, {times.what}")
            axis.set_title("ms")
            axis.set_yscale("log")
            axis.legend()
        figure.tight_layout()
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)
