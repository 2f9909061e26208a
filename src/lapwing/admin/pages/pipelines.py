"""The page of Spark queries that read or write the cluster, from their own reports."""

from typing import Any

from lapwing.admin.alarms import AlarmLimits, pipeline_age, stale
from lapwing.admin.pages.elements import Table, element, notice, panel, set_attributes, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Label, PageLinks, Row, TableColumn
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
from lapwing.client.pipeline_status import problem, starting

COLUMNS = (
    TableColumn("name", "Pipeline", "text", wide=True),
    TableColumn("kind", "Kind", "text"),
    TableColumn("state", "State", "labels"),
    TableColumn("channels", "Channel", "links"),
    TableColumn("lag", "Lag", title="Messages that the query has not read yet"),
    TableColumn("depth", "Channel depth", title="Messages that its channels still hold"),
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
    absent = notice("No nsqd here keeps account of pipelines.")
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
    with panel("Last error") as box, element("div", None, "lw-pad"):
        error = element("pre", "", "lw-body", tabindex=0)

    def refresh() -> None:
        cluster_view, limits = view.cluster_view, view.admin.poller.limits
        pipelines = cluster_view.pipelines or ()
        table.show([pipeline_row(pipeline, cluster_view, limits, view.links) for pipeline in pipelines])
        if not chosen[0]:  # show the first one with a problem
            chosen[0] = next((str(each["name"]) for each in pipelines if problem(each, now=cluster_view.at)), "")
        table.choose(chosen[0])
        shown = next((pipeline for pipeline in pipelines if pipeline.get("name") == chosen[0]), None)
        text = str((shown or {}).get("error") or "") or (problem(shown, now=cluster_view.at) if shown else "")
        set_text(error, text)
        box.set_visibility(bool(text))
        set_attributes(box, aria_label=f"Last error of {chosen[0]}")

    view.live(refresh)


def pipeline_row(pipeline: Json, cluster_view: ClusterView, limits: AlarmLimits, links: PageLinks) -> Row:
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
        _state(pipeline, cluster_view, limits),
        channels or [[topic, links.topic(topic), ""] for topic in topics],
        None if stale(pipeline, cluster_view.at, limits) else pipeline.get("lag"),
        sum(known["depth"] + known["in_flight_count"] for known in found if known is not None),
        round(_number(pipeline.get("input_rate")), 2),
        round(_number(pipeline.get("processed_rate")), 2),
        pipeline.get("rejected"),
        pipeline.get("late"),
        None if begins else pipeline.get("batch_id"),
        None if begins else _number(pipeline.get("batch_ms")) / 1000,
        max(0, round(cluster_view.at - ended / 1000)) if (ended := _number(pipeline.get("batch_at_ms"))) else None,
        round(pipeline_age(pipeline, cluster_view.at)),
    ]


def _state(pipeline: Json, cluster_view: ClusterView, limits: AlarmLimits) -> list[Label]:
    state = str(pipeline.get("state") or "unknown")
    trouble = problem(pipeline, now=cluster_view.at)
    if pipeline.get("error") or state == "failed":
        return [["failed", "bad", trouble[:300]]]
    if stale(pipeline, cluster_view.at, limits):
        reported = str(pipeline.get("reported_state") or state)
        return [["silent", "bad", trouble], *([[reported, "", "The last it reported"]] if reported != "silent" else [])]
    if trouble:
        return [[state, "warn", trouble[:300]]]
    if starting(pipeline):
        return [["starting", "", "It has not ended its first batch yet"]]
    return [[state, "good" if state == "running" else "", ""]]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
