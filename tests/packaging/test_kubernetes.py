"""The chart for Kubernetes makes objects that Kubernetes knows, fit together, and start our programs."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from test_packaging import PACKAGING, check_command

import daemons

HELM = Path(sys.executable).parent / "helm"
CHART = PACKAGING / "helm" / "lapwing"
MANIFEST = PACKAGING / "kubernetes" / "lapwing.yaml"
OLDEST = "1.28"  # as Chart.yaml has it
VALUES = {
    "defaults": (),
    "one of each, no page": ("nsqd.replicas=1", "nsqlookupd.replicas=1", "nsqadmin.enabled=false"),
    "everything": (
        "nsqd.replicas=3", "nsqlookupd.replicas=3", "nsqd.redis=true", "nsqd.storage.class=fast", "image.tag=x",
        "image.pullSecrets={one,two}", "nsqd.flags={--durability=fsync}", "nsqlookupd.flags={--tombstone-lifetime=1m}",
        "nsqadmin.flags={--allowed-host=queue.example}", "nsqd.resources=null",
    ),
}  # fmt: skip

Objects = list[dict[str, Any]]

pytestmark = pytest.mark.skipif(not HELM.exists(), reason="there is no helm for this machine on PyPI")


def helm(*arguments: str) -> str:
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parsed(text: str) -> Objects:
    return [found for found in yaml.safe_load_all(text) if found is not None]


@pytest.fixture(scope="module", params=VALUES)
def objects(request: pytest.FixtureRequest) -> Objects:
    settings = [word for value in VALUES[request.param] for word in ("--set", value)]
    return parsed(helm("template", "queue", str(CHART), *settings))


def workloads(objects: Objects) -> dict[str, dict[str, Any]]:
    """The objects that have pods, by name."""
    return {found["metadata"]["name"]: found for found in objects if "template" in found["spec"]}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def test_helm_finds_no_fault() -> None:
    helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(objects: Objects, version: str) -> None:
    assert objects
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)


def test_a_field_that_is_no_field_would_be_found(objects: Objects) -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects[0], "spce": {}}, OLDEST, strict=True)


def test_every_container_starts_a_program_with_flags_that_it_has(objects: Objects) -> None:
    for workload in workloads(objects).values():
        check_command([*container(workload)["command"], *container(workload)["args"]])


def test_every_service_leads_to_ports_of_pods(objects: Objects) -> None:
    services = [found for found in objects if found["kind"] == "Service"]

    for service in services:
        labels = service["spec"]["selector"]
        matching = [each for each in workloads(objects).values() if each["spec"]["selector"]["matchLabels"] == labels]
        (workload,) = matching
        assert workload["spec"]["template"]["metadata"]["labels"] == labels
        ports = {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_every_address_is_that_of_a_pod(objects: Objects) -> None:
    headless = {found["metadata"]["name"] for found in objects if found["spec"].get("clusterIP") == "None"}
    found = workloads(objects)
    lookupds = found["queue-nsqlookupd"]
    ports = {port["name"]: port["containerPort"] for port in container(lookupds)["ports"]}

    for name, flag, door in [("nsqd", "lookupd-tcp", "tcp"), ("nsqadmin", "lookupd-http", "http")]:
        if workload := found.get(f"queue-{name}"):
            given = [word for word in container(workload)["args"] if word.startswith(f"--{flag}-address=")]
            assert given == [
                f"--{flag}-address=queue-nsqlookupd-{number}.queue-nsqlookupd:{ports[door]}"
                for number in range(lookupds["spec"]["replicas"])
            ]
    for name in ("queue-nsqd", "queue-nsqlookupd"):
        service = found[name]["spec"]["serviceName"]
        assert service in headless
        assert f"--broadcast-address=$(POD_NAME).{service}.$(POD_NAMESPACE)" in container(found[name])["args"]


def test_the_data_of_nsqd_are_on_a_volume_of_its_own(objects: Objects) -> None:
    nsqd = workloads(objects)["queue-nsqd"]
    (claim,) = nsqd["spec"]["volumeClaimTemplates"]
    (mount,) = container(nsqd)["volumeMounts"]

    assert mount["name"] == claim["metadata"]["name"]
    assert f"--data-path={mount['mountPath']}" in container(nsqd)["args"]


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, str]]:
    """The URL of each daemon."""
    with (
        daemons.nsqd() as nsqd,
        daemons.start_nsqlookupd() as lookupd,
        daemons.start_nsqadmin(f"--lookupd-http-address={lookupd.http}") as admin,
    ):
        yield {"nsqd": nsqd.url, "nsqlookupd": lookupd.url, "nsqadmin": admin.url}


def test_every_probe_is_answered(running: dict[str, str]) -> None:
    found = workloads(parsed(MANIFEST.read_text()))

    assert len(found) == len(running)
    for workload in found.values():
        own = container(workload)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            call = own[probe]["httpGet"]
            assert call["port"] in {port["name"] for port in own["ports"]}
            with urllib.request.urlopen(running[own["name"]] + call["path"], timeout=60) as answer:
                assert answer.status == 200


def test_the_manifest_is_what_the_chart_makes() -> None:
    made = helm("template", "lapwing", str(CHART))
    comment, _, kept = MANIFEST.read_text().partition("---\n")

    assert all(line.startswith("#") for line in comment.splitlines())
    assert "---\n" + kept == made, f"write it again, below its comment: helm template lapwing {CHART}"
