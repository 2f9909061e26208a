"""The page of Spark queries that read or write the cluster, from their own reports."""

from collections.abc import Collection
from typing import Any

from lapwing.admin.links import PageLinks
from lapwing.admin.pages.elements import Chart, Table, element, notice, panel, set_attributes, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Label, Row, TableColumn
from lapwing.admin.pipeline_history import Batch
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
from lapwing.client.pipeline_status import age, problem, silent_for, starting

SPAN = 3600.0  # seconds of the charts of batches
COLUMNS = (
    TableColumn("name", "Pipeline", "text", wide=True),
    TableColumn("kind", "Kind", "text"),
    TableColumn("state", "State", "labels"),
    TableColumn("channels", "Channel", "links"),
    TableColumn("lag", "Lag", title="Messages that the query has not read yet"),
    TableColumn("depth", "Channel depth", title="Messages that its channels still hold"),
    TableColumn("lands", "Rows go to", "labels", title="Where its rows land"),
    TableColumn("input", "Input", "rate", "Messages read a second"),
    TableColumn("processed", "Processed", "rate", "Messages processed a second"),
    TableColumn("rejected", "Rejected", title="Messages that could not be used, since the run began"),
    TableColumn("late", "Late", title="Rows that came after the watermark, since the run began"),
    TableColumn("batch", "Last batch"),
    TableColumn("took", "Batch took", "dur"),
    TableColumn("ended", "Batch ended", "dur", "Time since the last batch ended"),
    TableColumn("seen", "Reported", "dur", "Time since it last reported"),
)


def draw(view: PageView) -> None:
    """Draw `/pipelines`."""
    view.explain(
        "Each running Spark query reports to nsqd how far it is; its channel shows the same from the broker's side."
    )
    absent = notice("No nsqd here knows of pipelines.")
    _list(view)
    view.live(lambda: absent.set_visibility(view.cluster_view.pipelines is None))


def _list(view: PageView) -> None:
    chosen = [view.asked("name")]

    def pick(name: str) -> None:
        chosen[0] = name
        refresh()

    with panel():
        table = Table(
            "pipelines",
            "Pipelines",
            COLUMNS,
            order="name",
            on_pick=pick,
            empty="No pipeline has reported yet. Start one with `lapwing pipeline`.",
        )
    batches = _Batches()
    with panel("Last error") as box, element("div", None, "lw-pad"):
        error = element("pre", "", "lw-body", tabindex=0)

    def refresh() -> None:
        cluster_view = view.cluster_view
        pipelines = cluster_view.pipelines or ()
        table.show([pipeline_row(pipeline, cluster_view, view.links) for pipeline in pipelines])
        if not chosen[0] and pipelines:  # show the first one with a problem
            bad = (each for each in pipelines if problem(each, now=cluster_view.at))
            chosen[0] = str(next(bad, pipelines[0])["name"])
        table.choose(chosen[0])
        shown = next((pipeline for pipeline in pipelines if pipeline.get("name") == chosen[0]), None)
        batches.show(view.admin.poller.pipeline_history.batches.get(chosen[0], ()), chosen[0])
        text = str((shown or {}).get("error") or "") or (problem(shown, now=cluster_view.at) if shown else "")
        set_text(error, text)
        box.set_visibility(bool(text))
        set_attributes(box, aria_label=f"Last error of {chosen[0]}")

    view.live(refresh)


class _Batches:
    """Charts of the batches of the chosen pipeline, created with its first batch, as a hidden chart has no size."""

    def __init__(self) -> None:
        with element("section", None, "lw-stack") as self._box:
            self._title = element("h2", "")
            self._charts_box = element("div", None, "lw-charts")
        self._box.set_visibility(False)
        self._charts: list[Chart] = []
        self._shown: tuple[str, float] = ("", 0.0)

    def show(self, batches: Collection[Batch], name: str) -> None:
        """Draw these batches, unless they are drawn."""
        self._box.set_visibility(bool(batches))
        if not batches or self._shown == (name, newest := max(batch.at for batch in batches)):
            return
        self._shown = name, newest
        set_text(self._title, f"Batches of {name}")
        if not self._charts:
            with self._charts_box:
                rows = [("read", "c1"), ("written", "c2")]
                self._charts = [
                    Chart("Rows of a batch", "count", rows, span=SPAN),
                    Chart("Duration of a batch", "duration", [("took", "c4")], span=SPAN),
                    Chart("Lag after a batch", "count", [("unread", "c3")], span=SPAN),
                ]
        read, written, took, lag = (
            [(batch.at, getattr(batch, figure)) for batch in batches]
            for figure in ("rows_in", "rows_out", "took", "lag")
        )
        for chart, columns in zip(self._charts, ([read, written], [took], [lag]), strict=True):
            chart.show(columns, whole=True, span=SPAN)


def pipeline_row(pipeline: Json, cluster_view: ClusterView, links: PageLinks) -> Row:
    """Return the row of one query."""
    channel = str(pipeline.get("channel") or "")
    begins = starting(pipeline)
    topics = [str(topic) for topic in pipeline.get("topics") or ()]
    if begins:  # it reports patterns: show the channels that are there
        topics = [topic for topic in cluster_view.topics if channel and cluster_view.channel(topic, channel)]
    found = [cluster_view.channel(topic, channel) for topic in topics] if channel else []
    channels = [
        [f"{topic}/{channel}", links.topic(topic, channel), "" if known else "warn"]
        for topic, known in zip(topics, found, strict=False)
    ]
    return [
        pipeline["name"],
        pipeline["name"],
        str(pipeline.get("kind") or ""),
        _state(pipeline, cluster_view),
        channels or [[topic, links.topic(topic), ""] for topic in topics],
        None if silent_for(pipeline, now=cluster_view.at) else pipeline.get("lag"),
        sum(known["depth"] + known["in_flight_count"] for known in found if known is not None),
        [[_short(place), "", place] for place in pipeline.get("lands") or ()],
        round(_number(pipeline.get("input_rate")), 2),
        round(_number(pipeline.get("processed_rate")), 2),
        pipeline.get("rejected"),
        pipeline.get("late"),
        None if begins else pipeline.get("batch_id"),
        None if begins else _number(pipeline.get("batch_ms")) / 1000,
        max(0, round(cluster_view.at - ended / 1000)) if (ended := _number(pipeline.get("batch_at_ms"))) else None,
        round(age(pipeline, now=cluster_view.at)),
    ]


def _state(pipeline: Json, cluster_view: ClusterView) -> list[Label]:
    state = str(pipeline.get("state") or "unknown")
    trouble = problem(pipeline, now=cluster_view.at)
    if pipeline.get("error") or state == "failed":
        return [["failed", "bad", trouble[:300]]]
    if silent_for(pipeline, now=cluster_view.at):
        reported = str(pipeline.get("reported_state") or state)
        return [["silent", "bad", trouble], *([[reported, "", "The last it reported"]] if reported != "silent" else [])]
    if trouble:
        return [[state, "warn", trouble[:300]]]
    if starting(pipeline):
        if doing := str(pipeline.get("doing") or ""):
            return [["installing", "", doing]]
        return [["starting", "", "It has not ended its first batch yet"]]
    return [[state, "good" if state == "running" else "", ""]]


def _short(place: str) -> str:
    """Return the last two parts of a folder or address, whose whole is its tooltip."""
    parts = place.rstrip("/").split("/")
    return place if len(parts) < 4 else "…/" + "/".join(parts[-2:])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
