"""What is handed out to watch Sickbay with asks for metrics that are there, and leads to pages that are there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cases import one_by_one

from sickbay.faces.api.families import FAMILIES
from sickbay.hosts.tally import CauseClass
from sickbay.model.fleet import AgentState
from sickbay.model.incident import Phase
from sickbay.model.job import JobState

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = ("recording.yml", "alerts.yml")
NAME = re.compile(r"\b(?:sickbay|process)[_:][a-z0-9_:]+")
MATCH = re.compile(r'(\w+)=~?"([^"]*)"')
KNOWN = {
    "state": {*JobState, "READY", "UNKNOWN", "SUSPECT", "OUT", "LOST", "HELD", "INTAKE"},
    "phase": set(Phase),
    "agent": set(AgentState),
    "outcome": {"done", "failed", "proven", "not_cured", "ended", "delivered", "rejected", "given_up", "withdrawn"},
    "cause": set(CauseClass),
}


def rules(file: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((DEPLOY / "prometheus" / file).read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


RECORDED = {rule["record"] for rule in rules("recording.yml")}
ALERTS = list(rules("alerts.yml"))
DASHBOARD = json.loads((DEPLOY / "grafana" / "sickbay.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def asked() -> Iterator[tuple[str, str]]:
    for file in RULES:
        for rule in rules(file):
            yield rule.get("record") or rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for row in re.findall(r"^\|.*`.*$", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE):
        yield "docs/metrics.md", row


@one_by_one(("what", "query"), list(asked()))
def test_every_query_asks_for_metrics_and_labels_that_there_are(what: str, query: str) -> None:
    names = set(NAME.findall(query))
    assert names - FAMILIES.keys() - RECORDED == set() or what == "SickbayControllerDown", query
    labels = {label for name in names & FAMILIES.keys() for label in FAMILIES[name].labels}
    derived = {"rung", "pool", "cluster", "cause"} if names & RECORDED else set()
    for label, values in MATCH.findall(query):
        assert label in labels | derived | {"job"}, f"{label} in {query}"
        assert "$" in values or label == "source" or set(values.split("|")) <= KNOWN.get(label, set(values.split("|")))
    for by in re.findall(r"by \(([^)]*)\)", query):
        assert set(by.split(", ")) <= labels | derived | {"instance"}, query


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_its_runbook(alert: dict[str, Any]) -> None:
    page = ROOT / alert["annotations"]["runbook"]
    text = page.read_text(encoding="utf-8")
    assert "**What it means.**" in text
    assert "\n## Look\n" in text
    assert "\n## Do" in text
    assert alert["annotations"]["summary"]
    assert alert["labels"]["severity"] in {"warning", "critical"}


def test_every_page_about_an_alert_is_led_to() -> None:
    led = {alert["annotations"]["runbook"] for alert in ALERTS}
    for page in (ROOT / "docs" / "runbooks" / "alerts").glob("*.md"):
        assert str(page.relative_to(ROOT)) in led


def test_the_example_configuration_loads_the_rules_and_asks_the_right_path() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yml").read_text(encoding="utf-8"))
    assert set(config["rule_files"]) == set(RULES)
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("sickbay", "/metrics")


def test_panels_have_their_own_place_and_number() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another"
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("file", RULES)
def test_prometheus_own_checker_takes_the_rules(file: str) -> None:
    ran = subprocess.run(
        ["promtool", "check", "rules", DEPLOY / "prometheus" / file], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
