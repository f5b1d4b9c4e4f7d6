"""The Compose file: it says what there is, and its processes work together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.compose_site import COMPOSE, DEPLOY, compose_site, services
from tests.deploy.smoke import smoke

from sparkport.config import SETTINGS

pytestmark = pytest.mark.tier("thorough")

VARIABLES = {setting.env for setting in SETTINGS if setting.env} | {"SPARKPORT_CACHE", "SPARKPORT_CONFIG"}
NAMES = {setting.name for setting in SETTINGS}


@pytest.mark.timeout(600)
def test_its_processes_work_together_on_one_machine(tmp_path: Path) -> None:
    with compose_site(tmp_path) as site:
        smoke(site)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.items() for item in part for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [str(value)]


def test_every_variable_and_setting_that_is_named_exists() -> None:
    for file in (COMPOSE, DEPLOY / "Dockerfile", DEPLOY / "sparkport.service", DEPLOY / "healthcheck"):
        assert set(re.findall(r"SPARKPORT_\w+", file.read_text())) <= VARIABLES, file.name
    assert set(tomllib.loads((DEPLOY / "compose" / "sparkport.toml").read_text())) <= NAMES


def test_what_it_mounts_is_there_and_what_is_secret_is_in_no_file() -> None:
    content = yaml.safe_load(COMPOSE.read_text())
    examples = (DEPLOY / ".env.example").read_text()
    for name, service in content["services"].items():
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            assert source in content["volumes"] or (DEPLOY / source).exists(), (name, mount)
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)
    for variable in re.findall(r"\$\{(\w+)", COMPOSE.read_text()):
        assert re.search(rf"^{variable}=", examples, re.MULTILINE), variable
    ignored = (DEPLOY.parent / ".gitignore").read_text()
    for secret in content["secrets"].values():
        assert f"/deploy/{secret['file'].removeprefix('./')}" in ignored


def test_services_wait_for_each_other_by_names_that_exist() -> None:
    listed = services()
    for service in listed.values():
        assert set(service.get("depends_on", [])) <= set(listed)
    hosts = set(re.findall(r"(?:://|@)([a-z][a-z-]+)[:/]", COMPOSE.read_text()))
    assert hosts <= set(listed) | {"docs"}


def test_the_image_has_what_a_start_needs() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    assert lines.count("openjdk-17-jre-headless") == 2
    assert re.search(r"^USER 10001$", lines, re.MULTILINE)
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", lines, re.MULTILINE):
        for path in source.split():
            assert (DEPLOY.parent / path).exists(), path
            kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{path}" in kept
