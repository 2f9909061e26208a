"""Every Python example of docs/reference/spark.md, and every script in examples/, does what it says."""

import contextlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from documents import blocks

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
ORDERS = [{"id": 1, "country": "NL", "amount": 50}, {"id": 2, "country": "DE", "amount": 150}]
ORDERS += [{"id": 3, "country": "NL", "amount": 250}]


@pytest.fixture
def orders(broker):
    for topic in ("orders", "legacy"):
        broker.publish(topic, *(json.dumps(order).encode() for order in ORDERS))
    return broker


@pytest.fixture
def kept(spark, monkeypatch):
    """The session of the tests is the one that examples get, and they do not stop it."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)


def test_the_examples_of_the_documentation_work_in_order(spark, kept, orders, tmp_path, capsys):
    text = (ROOT / "docs" / "reference" / "spark.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [block for block in blocks if "import SparkSession" not in block]  # tests/soak/spark_submit.py
    orders.publish("payments", b'{"order": 1}', b'{"order": 3}', b'{"order": 9}')
    names = {}
    for block in blocks:
        code = block.replace("127.0.0.1:4151", orders.address).replace("/data", str(tmp_path))
        exec(compile(code, "docs/reference/spark.md", "exec"), names)

    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    shown = capsys.readouterr().out
    assert names["recent"].count() == 2
    assert len(blocks) == 14
    assert "|NL|2|" in shown.replace(" ", "")
    assert "no broker has the topic no_such_topic\n" in shown
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 3
    assert spark.read.parquet(str(tmp_path / "plain")).count() == 3
    assert orders.bodies("reminders") == orders.bodies("invoices") == ['{"id": 1}', '{"id": 2}']
    assert orders.bodies("orders_copy") == orders.bodies("large_orders") == orders.bodies("orders")
    assert orders.depth("orders", "lake") == 0
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "paid")).collect()) == ["1", "3"]


def test_the_snippet_of_the_readme_shows_rows(spark, kept, orders, capsys):
    (code,) = [each.text for each in blocks("README.md") if "local_session" in each.text]
    exec(compile(code.replace("127.0.0.1:4151", orders.address), "README.md", "exec"), {})

    assert len(re.findall(r"NL|DE", capsys.readouterr().out)) == len(ORDERS)


def run(name, *arguments):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.suppress(SystemExit):
        module.main(*arguments)


def test_the_example_scripts_work(spark, kept, orders, tmp_path, capsys):
    run("spark_batch", orders.address, "orders")
    shown = capsys.readouterr().out.replace(" ", "")
    assert "|DE|1|" in shown
    assert "|NL|2|" in shown

    for _ in range(2):
        run("spark_lake", orders.address, "orders", str(tmp_path / "lake"))
    assert spark.read.parquet(str(tmp_path / "lake" / "data")).count() == 3

    run("spark_enrich", orders.address, "orders", "large", str(tmp_path / "enrich"))
    assert [(json.loads(m["body"])["id"], m["headers"]) for m in orders.messages("large")] == [
        (2, {"source": "orders", "sequence": "1"}), (3, {"source": "orders", "sequence": "2"}),
    ]  # fmt: skip
