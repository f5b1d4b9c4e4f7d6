"""The Helm chart, rendered by Helm itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.compose_site import DEPLOY
from tests.deploy.test_compose import NAMES, VARIABLES

from sparkport.config import load
from sparkport.lakehouse.jars import cache_home

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
CHART = DEPLOY / "helm" / "sparkport"
KUBERNETES = ("--kube-version", "1.30.0")
GUARDED = ("--set", "secrets.tls=cert,secrets.tokens=tokens")
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(1200)]  # Helm is built from its source, once


@pytest.fixture(scope="module")
def helm() -> Path:
    if (found := shutil.which("helm")) is not None:
        return Path(found)
    place = cache_home() / "helm" / HELM.rpartition("@")[2]
    if not (place / "helm").exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("there is neither Helm nor Go to build it with")
        made = subprocess.run(
            [go, "install", HELM], env={**os.environ, "GOBIN": str(place)}, capture_output=True, text=True
        )
        if made.returncode:
            pytest.skip(f"Helm cannot be built: {made.stderr[-300:]}")
    return place / "helm"


def rendered(helm: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """What is to be made, by its kind."""
    command = [str(helm), "template", "lake", str(CHART), *KUBERNETES, *arguments]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    objects = [found for found in yaml.safe_load_all(made.stdout) if found]
    assert all(found["apiVersion"] and found["metadata"]["name"] for found in objects)
    return {found["kind"]: found for found in objects}


def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (found,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def settings_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return tomllib.loads(objects["ConfigMap"]["data"]["sparkport.toml"])


def test_it_is_a_sound_chart(helm: Path) -> None:
    command = [str(helm), "lint", "--strict", str(CHART), *KUBERNETES, *GUARDED]
    linted = subprocess.run(command, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


def test_a_server_that_anybody_could_use_is_refused(helm: Path) -> None:
    made = subprocess.run([str(helm), "template", str(CHART), *KUBERNETES], capture_output=True, text=True)
    assert made.returncode != 0
    assert "needs secrets.tls and secrets.tokens" in made.stderr


def test_tables_are_on_a_volume_unless_said_otherwise(helm: Path, tmp_path: Path) -> None:
    objects = rendered(helm, *GUARDED)
    assert objects.keys() == {"ConfigMap", "Service", "ServiceAccount", "StatefulSet"}
    (claim,) = objects["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(objects)["volumeMounts"]}
    assert settings_of(objects)["warehouse"].startswith(mounts["data"] + "/")
    assert {"settings", "data", "tmp", "tokens", "tls"} == mounts.keys()


def test_the_settings_are_ones_that_the_server_takes(helm: Path, tmp_path: Path) -> None:
    objects = rendered(helm, *GUARDED, "--set", "rules=rules,properties.spark\\.cores\\.max=4")
    assert settings_of(objects)["properties"] == {"spark.cores.max": 4}
    assert set(settings_of(objects)) <= NAMES
    variables = {entry["name"]: entry["value"] for entry in container(objects)["env"]}
    assert variables.keys() <= VARIABLES
    file = tmp_path / "sparkport.toml"
    file.write_text(objects["ConfigMap"]["data"]["sparkport.toml"])
    read = load({}, variables, file=file)
    assert (read.port, read.http_port, str(read.tls_cert)) == (50051, 50052, "/run/secrets/tls/tls.crt")


def test_probes_ask_what_the_server_answers(helm: Path) -> None:
    made = container(rendered(helm, *GUARDED))
    asked = {name: made[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["path"] for probe in asked.values()} == {"/healthz", "/readyz/reads"}
    assert {probe["scheme"] for probe in asked.values()} == {"HTTPS"}
    plain = container(rendered(helm, "--set", "settings.insecure=true,probes.ready=all"))
    assert plain["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTP"}


def test_a_warehouse_in_a_store_needs_no_volume(helm: Path) -> None:
    objects = rendered(
        helm,
        *GUARDED,
        "--set",
        "persistence.enabled=false,settings.warehouse=s3://lake/warehouse,secrets.environment=keys",
    )
    assert "volumeClaimTemplates" not in objects["StatefulSet"]["spec"]
    assert container(objects)["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert settings_of(objects)["warehouse"] == "s3://lake/warehouse"


def test_nothing_in_the_pod_has_more_rights_than_it_needs(helm: Path) -> None:
    objects = rendered(helm, *GUARDED)
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_changed_settings_start_the_server_again(helm: Path) -> None:
    marks = [
        rendered(helm, *GUARDED, *more)["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
        for more in ((), ("--set", "settings.journal=true"))
    ]
    assert marks[0]["checksum/settings"] != marks[1]["checksum/settings"]
