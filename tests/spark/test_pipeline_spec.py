"""Pipelines as they are written down: what is wrong is said with its place and the remedy, before anything starts."""

import json
from importlib import import_module
from inspect import signature

import pytest

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.kinds.messages import sink_access, stream_options
from lapwing.spark.pipelines.kinds.parse import with_mark
from lapwing.spark.pipelines.run import upkeep
from lapwing.spark.pipelines.run.command import RunCommand, remembered
from lapwing.spark.pipelines.settings import spec, template
from lapwing.spark.pipelines.settings.kind_settings import KINDS, ArchiveSettings, ReplaySettings, TableSettings


def written(tmp_path, text, name="p.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_short_file_is_a_pipeline(tmp_path):
    path = written(tmp_path, "kind: archive\ntopics: [a, b]\ntrigger: 5s\nnsqd: 10.0.0.1:4151\n", "lake.yaml")

    [found] = spec.load(path)

    assert isinstance(found.settings, ArchiveSettings)
    assert found.settings.name == "lake"
    assert found.settings.topics == ("a", "b")
    assert found.settings.trigger == 5.0
    assert found.settings.nsqd == ("10.0.0.1:4151",)


def test_http_addresses_may_have_the_name_that_the_client_gives_them(tmp_path):
    [found] = spec.load(written(tmp_path, "kind: archive\nnsqd_http: [10.0.0.1:4151]\n"))

    assert found.settings.nsqd == ("10.0.0.1:4151",)


def test_options_of_the_source_are_for_reading_and_those_of_tls_for_writing_too(tmp_path):
    text = "kind: archive\ntopics: a\noptions: {tls: true, minpartitions: 4, localFiles: false}\n"
    [found] = spec.load(written(tmp_path, text))
    stream, sink = stream_options(found.settings), sink_access(found.settings, ("h:1",))

    assert (stream["tls"], stream["minPartitions"], stream["localFiles"]) == ("true", "4", "false")
    assert {key: value for key, value in sink.items() if key != "retryTimeout"} == {"nsqd": "h:1", "tls": "true"}


def test_a_python_file_that_is_named_from_its_own_directory_has_its_line_too(tmp_path, monkeypatch):
    written(tmp_path, "\nimport no_such_module\n", "mine.py")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"^mine\.py:2: ModuleNotFoundError"):
        spec.load("mine.py")


def test_an_option_with_a_value_it_cannot_have_is_named_with_its_line(tmp_path):
    for option, said in (("minPartitions: no", "option minPartitions is a"), ("tls: perhaps", "option tls is true or")):
        [found] = spec.load(written(tmp_path, f"kind: archive\noptions:\n  {option}\n"))
        with pytest.raises(ConfigError) as caught:
            stream_options(found.settings)
        assert found.located(str(caught.value)).startswith(f"{tmp_path}/p.yaml:3: options: {said}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: archive\ntopcs: [a]\n", "p.yaml:2: unknown key topcs; did you mean topics?"),
        ("kind: archive\ntopics: [a\n", "p.yaml:3: not YAML"),
        ("kind: archive\ntopics: [a\nto: b\n", "but got ':' while parsing a flow sequence that begins at line 2"),
        ("kind: archive\n\ttopics: a\n", "p.yaml:2: not YAML: a tab; YAML wants spaces there"),
        ("kind: archive\n\n\ntrigger: soon\n", 'p.yaml:4: trigger: invalid duration "soon": write numbers with units'),
        ("kind: archive\nretry: 30\n", 'p.yaml:2: retry: invalid duration "30": the unit is missing, write 30s'),
        ("kind: archiv\n", "p.yaml:1: no kind of pipeline is called archiv; did you mean archive?"),
        ("kind: [archive]\n", "p.yaml:1: no kind of pipeline is called ['archive']; did you mean archive?"),
        ("kind: archive\ntopics: &a [*a]\n", "p.yaml:2: topics: found unconstructable recursive node"),
        ("kind: archive\nchannel: 'a b'\n", "p.yaml:2: channel: 'a b' is no name for a channel"),
        ("topics: a\n", "p.yaml: no kind; set kind: archive"),
        ("kind: archive\ntopics: a\ntopics: b\n", "p.yaml:3: topics stands here twice, first at line 2"),
        ("kind: archive\ntopics: 'a b'\n", "p.yaml:2: topics: 'a b' is no name for a topic"),
        ("kind: archive\nmax_messages: 0\n", "p.yaml:2: max_messages: a number above 0 expected, not 0"),
        ("kind: archive\nnsqd: http://x:1\n", "p.yaml:2: nsqd: host:port of an HTTP address expected"),
        ("kind: archive\ntopics: a\npattern: .*\n", "p.yaml: exactly one of topics and pattern is needed"),
        ("kind: archive\nnsqd: a:1\nlookupd: b:1\n", "p.yaml: nsqd and lookupd exclude each other"),
        ("kind: transform\ntopics: a\nto: b\n", "p.yaml: sql is missing"),
        ("kind: transform\ntopics: a\nto: a\nsql: select * from input\n", "p.yaml: to: a is also read"),
        ("kind: transform\npattern: a.*\nto: ab\nsql: select * from input\n", "p.yaml: to: ab is also read"),
        ("kind: transform\ntopics: a\nto: a\nsql: select 1\n", "p.yaml: to: a is also read"),
        ("kind: replay\nto: b\n", "p.yaml: topics is missing"),
        ("kind: replay\ntopics: a\nto: b\nsequences: 9..3\n", "p.yaml:4: sequences: '9..3' holds no sequence"),
        ("kind: replay\ntopics: a\nto: b\nsince: monday\n", "p.yaml:4: since: a time such as"),
        ("kind: replay\ntopics: a\nto: b\nsince: 1700000000000000000\n", "p.yaml:4: since: a time in ms since 1970"),
        ("kind: replay\ntopics: a\nsince: 2026-13-45\n", "p.yaml:3: since: '2026-13-45': month must be in 1..12"),
        ("kind: !!python/name:os.system\n", "p.yaml:1: kind: could not determine a constructor for the tag"),
        ("kind: archive\noptions: {minParts: 4}\n", "p.yaml:2: options: unknown option minParts; did you mean"),
        ("kind: archive\noptions:\n  startingOffsets: x\n", "options: startingOffsets belongs to the setting start"),
        ("- a\n", "p.yaml:1: `key: value` lines expected"),
        ("", "p.yaml: empty"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_the_remedy(tmp_path, text, complaint):
    with pytest.raises(ConfigError) as caught:
        spec.load(written(tmp_path, text))

    assert complaint in str(caught.value)


def test_complaints_of_later_checks_are_given_the_line_of_the_file(tmp_path):
    text = "kind: transform\ntopics: a\nto: b\nrejects: c\nsql: |\n  select x,\n  y from input\n"
    path = written(tmp_path, text)
    [found] = spec.load(path)
    [overridden] = spec.load(path, ["sql=select 1 from input"])

    assert found.located("p: sql: no column y (line 2, column 1)") == f"{path}:7: sql: no column y"
    assert found.located("p: rejects: c is also read") == f"{path}:4: rejects: c is also read"
    assert found.located("p: no messages") == f"{path}: no messages"
    assert found.located("/lake: cannot write there") == "/lake: cannot write there"
    assert overridden.located("p: sql: no column y (line 1, column 8)") == (
        f"{path}: sql: no column y (line 1, column 8)"
    )


def test_an_unknown_name_suggests_the_one_that_was_meant():
    with pytest.raises(ConfigError, match="did you mean archive"):
        spec.load("archve")
    with pytest.raises(ConfigError, match="no such file"):
        spec.load("nowhere.yaml")


def test_the_command_line_wins_over_the_file_and_reaches_only_those_it_names(tmp_path):
    path = written(tmp_path, "kind: archive\nname: lake\ntopics: [a]\ntrigger: 5s\n")
    overrides = ["trigger=1s", "lake.max_messages=7", "other.trigger=9s"]

    [found] = spec.load(path, overrides, {"nsqd": ["x:1"], "dry_run": True})

    assert isinstance(found.settings, ArchiveSettings)
    assert (found.settings.trigger, found.settings.max_messages, found.settings.nsqd) == (1.0, 7, ("x:1",))
    assert spec.unused(overrides, [found]) == ["other.trigger=9s"]


def test_an_archive_that_names_no_topic_takes_all_but_lapwings_own():
    import re

    [found] = spec.load("archive")

    assert isinstance(found.settings, ArchiveSettings)
    assert re.fullmatch(found.settings.pattern, "orders")
    assert not re.fullmatch(found.settings.pattern, "_lapwing_stats")
    assert not re.fullmatch(found.settings.pattern, "passing#ephemeral")


def test_times_and_values_mean_the_same_in_yaml_and_on_the_command_line(tmp_path):
    text = (
        "kind: replay\ntopics: a\nto: b\nsince: 2026-11-15T10:00:00Z\nsequences: 5..\n"
    )

    [from_file] = spec.load(written(tmp_path, text))
    [from_line] = spec.load("replay", ["topics=a", "to=b", "since=2026-11-15T10:00:00+00:00", "sequences=5.."])
    [table] = spec.load("table", ["topics=a", "columns=n=count;p=p95(x)", "history=1m30s"])

    assert isinstance(from_file.settings, ReplaySettings)
    assert isinstance(from_line.settings, ReplaySettings)
    assert from_file.settings.since == from_line.settings.since == 1794736800000
    assert from_file.settings.sequences == from_line.settings.sequences == (5, 2**62)
    assert isinstance(table.settings, TableSettings)
    assert table.settings.columns == {"n": "count", "p": "p95(x)"}
    assert table.settings.history == 90.0


def test_a_python_file_defines_pipelines_with_functions(tmp_path):
    text = (
        "from lapwing.spark.pipelines.python import pipeline\n"
        "@pipeline(topics='orders', to='large', schema='amount double')\n"
        "def large(orders):\n    return orders.where('amount > 10')\n"
    )

    [found] = spec.load(written(tmp_path, text, "mine.py"))

    assert found.name == "large"
    assert found.settings.kind == "transform"
    assert found.function is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", "no function has @pipeline"),
        ("import no_such_module\n", "mine.py:1: ModuleNotFoundError"),
        ("def f(:\n", "mine.py:1: SyntaxError"),
        ("from lapwing.spark.pipelines.python import pipeline\n\n@pipeline(topic='a')\ndef f(x): pass\n",
         "mine.py:3: unknown key topic; did you mean topics?"),
    ],
)  # fmt: skip
def test_a_python_file_that_does_not_work_says_where(tmp_path, text, complaint):
    with pytest.raises(ConfigError) as caught:
        spec.load(written(tmp_path, text, "mine.py"))

    assert complaint in str(caught.value)


def test_a_python_file_is_run_once(broker, tmp_path):
    text = (
        "from pathlib import Path\n"
        "from lapwing.spark.pipelines.python import pipeline\n"
        f"seen = Path({str(tmp_path / 'seen')!r})\n"
        "seen.write_text((seen.read_text() if seen.exists() else '') + 'once ')\n"
        "@pipeline(topics='orders', to='large')\n"
        "def large(orders):\n    return orders\n"
    )
    command = RunCommand([written(tmp_path, text, "mine.py")], extra={"nsqd": [broker.address]})
    assert not command.is_preview
    assert not command.is_bounded
    command.running(tmp_path / "data")._held.close()

    assert (tmp_path / "seen").read_text() == "once "


def test_a_file_url_is_a_place_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (f"file://{tmp_path}/a%20b/", f"file:{tmp_path}/a b", f"file://localhost{tmp_path}/a b", "a b"):
        assert spec.load("archive", [f"out={given}"])[0].settings.out == f"{tmp_path}/a b"
    assert spec.load("archive", ["out=hdfs://h/a/"])[0].settings.out == "hdfs://h/a"


def test_a_password_may_be_empty(tmp_path):
    text = "kind: table\ntopics: a\nstore: jdbc\ntable: t\nurl: jdbc:x:y\nuser: me\npassword: %s\n"

    assert spec.load(written(tmp_path, text % '""'))[0].settings.password == ""
    with pytest.raises(ConfigError, match="put quotes around a number"):
        spec.load(written(tmp_path, text % "7"))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"replay"}))
def test_every_kind_of_stream_has_a_module_of_its_name_that_builds_it(kind):
    module = import_module(f"lapwing.spark.pipelines.kinds.{kind}")

    assert list(signature(module.build).parameters) == ["settings", "context"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_that_init_writes_runs_as_it_stands_and_shows_every_setting(tmp_path, kind):
    text = template.template(kind)

    [found] = spec.load(written(tmp_path, text))

    assert found.settings.kind == kind
    for key in spec.keys(kind):
        assert f"{key}:" in text
    uncommented = text.replace("# Run it", "#-Run it")
    assert "None" not in uncommented


def test_avro_is_read_with_a_mark_that_broken_messages_lack():
    """Spark returns a row of nulls for a message that it cannot read."""
    order, newer = (
        {"type": "record", "name": "Order", "fields": [{"name": name, "type": ["null", "long"]}]}
        for name in ("id", "number")
    )
    mark = {"name": "_end", "type": "int", "default": 1}

    plain = with_mark(json.dumps(order), {"mode": "PERMISSIVE"}, "p")
    evolved = with_mark(json.dumps(order), {"AVROSCHEMA": json.dumps(newer)}, "p")

    assert plain.keys() == {"mode", "avroSchema"}
    assert json.loads(plain["avroSchema"]) == {**order, "fields": [*order["fields"], mark]}
    assert evolved.keys() == {"avroSchema"}
    assert json.loads(evolved["avroSchema"])["fields"] == [*newer["fields"], mark]
    for wrong in ("no json", '"long"', '{"type": "array"}'):
        with pytest.raises(ConfigError, match="p: definition: the schema of a record is needed"):
            with_mark(wrong, {}, "p")


def test_a_run_is_kept_for_resume_with_places_from_the_root_and_without_an_accepted_loss(broker, tmp_path, monkeypatch):
    data = tmp_path / "data"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {"nsqd": [broker.address], "out": "lake"}
    RunCommand(["archive"], ["topics=orders"], given, checkpoint="place").running(data)._held.close()

    monkeypatch.chdir(tmp_path / "elsewhere")
    again = remembered(data, "archive", accept_loss=True)
    assert again.checkpoint == str(tmp_path / "place")
    assert again.specs[0].settings.out == str(tmp_path / "lake")
    assert again.specs[0].settings.accept_loss
    again.running(data)._held.close()
    assert not remembered(data, "archive").specs[0].settings.accept_loss


def test_remove_deletes_the_channel_on_every_topic_though_the_last_start_failed(broker, tmp_path):
    for topic in ("orders", "late", "other"):
        for channel in ("archive", "billing"):
            broker.ask(f"/topic/create?topic={topic}", b"")
            broker.ask(f"/channel/create?topic={topic}&channel={channel}", b"")
    RunCommand(["archive"], ["pattern=orders|late"], {"nsqd": [broker.address]}).running(tmp_path)._held.close()

    assert upkeep.remove(tmp_path, "archive")[:2] == [
        f"deleted the channel {topic}/archive at {broker.address}" for topic in ("late", "orders")
    ]
    topics = broker.ask("/log/offsets")["topics"]
    left = {each["topic"]: {one["channel"] for one in each["channels"]} for each in topics}
    assert left == {"late": {"billing"}, "orders": {"billing"}, "other": {"archive", "billing"}}


def test_remove_does_not_wait_for_a_broker_that_is_away(start_broker, tmp_path):
    broker = start_broker()
    RunCommand(["archive"], ["retry=1h"], {"nsqd": [broker.address]}).running(tmp_path)._held.close()
    broker.daemon.kill()

    with pytest.raises(ConfigError, match=r"connection refused.*--keep-channel leaves it there") as caught:
        upkeep.remove(tmp_path, "archive")
    assert broker.address in str(caught.value)
    assert upkeep.remove(tmp_path, "archive", keep_channel=True)[0] == f"deleted {tmp_path}/archive"
