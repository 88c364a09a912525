"""GET /metrics as Prometheus reads it: valid, documented, bounded, and cheap however large the fleet is."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.api_ward import Clinic, clinic, counted, ward

from sickbay.faces.api.families import FAMILIES, MetricsPage
from sickbay.faces.api.metrics import page
from sickbay.faces.api.requests import OfMetrics
from sickbay.faces.api.route import ApiRequest
from sickbay.hosts.tally import CauseClass
from sickbay.model.fleet import NodeId

NODE = NodeId("sim/train-0003")
TABLE = Path(__file__).parents[2] / "src/sickbay/faces/api/families.csv"


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as one:
        yield one


def families(calls: Clinic) -> dict[str, Metric]:
    text = calls.viewer.get("/metrics").text
    return {found.name: found for found in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [s for s in found[name.removesuffix("_total")].samples if labels.items() <= s.labels.items()]
    return float(sample.value)


def test_the_page_is_what_prometheus_reads_with_help_and_type_of_each(calls: Clinic) -> None:
    found = families(calls)
    for family in FAMILIES.values():
        read = found.get(family.name.removesuffix("_total"))
        if read is not None:
            assert (read.type, read.documentation) == (family.kind, family.help)
            assert all(tuple(sample.labels) == family.labels for sample in read.samples)
    assert all(one.type in {"counter", "gauge"} for one in found.values()), "untyped: it has no TYPE"
    assert len({f"{sample}" for one in found.values() for sample in one.samples}) == sum(
        len(one.samples) for one in found.values()
    )


def test_what_the_fleet_is_and_did_is_there(calls: Clinic) -> None:
    found = families(calls)
    assert value(found, "sickbay_nodes", pool="sim/train", state="READY") == 7
    assert value(found, "sickbay_nodes", pool="sim/train", state="HELD") == 1
    assert value(found, "sickbay_jobs_open", state="RUNNING") == 2
    assert value(found, "sickbay_pool_out", pool="sim/train") == 1
    assert value(found, "sickbay_pool_held", pool="sim/train") == 1
    assert value(found, "sickbay_controller_leads") == 1
    assert value(found, "sickbay_source_age_seconds", source="sim") >= 0
    assert value(found, "sickbay_planning_lag_seconds") >= 0
    assert value(found, "sickbay_agents", pool="sim/train", agent="heard") == 8


def test_what_happens_is_counted(calls: Clinic) -> None:
    before = families(calls)
    calls.ward.pass_time(1.0)
    calls.operator.post("/v1/nodes/-/train-0005/cordon", {"reason": "a cable"})
    calls.ward.pass_time(30.0)
    found = families(calls)
    assert value(found, "sickbay_incidents_opened_total", kind="operator") == 1
    assert value(found, "sickbay_incidents_entered_total", phase="SUSPECT") == 1
    assert value(found, "sickbay_commits_total") > value(before, "sickbay_commits_total")


def test_what_has_not_happened_yet_is_zero_so_that_its_first_time_is_a_rise(calls: Clinic) -> None:
    found = families(calls)
    assert value(found, "sickbay_jobs_ended_total", cluster="sim", state="FAILED") == 0
    assert value(found, "sickbay_interruptions_total", cluster="sim", cause="hang") == 0
    assert value(found, "sickbay_interruption_seconds_total", cluster="sim", cause="hang") == 0


def test_whoever_does_not_lead_tells_of_itself_only(calls: Clinic) -> None:
    shared = calls.ward.app.state.shared
    standby = ApiRequest(shared=replace(shared, leads=lambda: False), path={}, key="k")
    told = str(page(standby, OfMetrics()).text)
    names = {found.name for found in text_string_to_metric_families(told)}
    everywhere = {f.name.removesuffix("_total") for f in FAMILIES.values() if f.everywhere}
    assert names == everywhere
    assert "sickbay_controller_leads 0" in told


def test_a_scrape_reads_a_few_rows_and_no_fleet() -> None:
    with counted() as (ask, loads):
        page(ask, OfMetrics())
        assert sum(len(keys) for keys in loads) <= 10, loads


def test_a_controller_that_feeds_no_census_reads_the_store() -> None:
    with ward() as made:
        made.desk.census.fed = False
        told = str(page(ApiRequest(shared=made.app.state.shared, path={}, key="k"), OfMetrics()).text)
        assert 'sickbay_nodes{pool="sim/train",state="READY"} 7' in told


def test_a_series_of_an_agent_never_breaks_the_page_nor_takes_the_place_of_ours(calls: Clinic) -> None:
    kept = calls.ward.desk.metrics
    assert kept is not None
    odd = {"nodes.value": 1.0, "incidents.open": 2.0, "gpu.0.temp\nx": 3.0, "gpu.0.temp x": 4.0, 'a"b': 5.0, "7.9": 6.0}
    kept.record(NODE, datetime.now(UTC), {**odd, "node.7.speed": 1.0, "gpu.1.power": 300.5})
    found = families(calls)
    assert value(found, "sickbay_gpu_power", node=NODE, gpu="1") == 300.5
    assert all(sample.labels["state"] for sample in found["sickbay_nodes"].samples)
    assert "sickbay_gpu_power" not in calls.viewer.get("/metrics", measured="false").text
    kept.record(NODE, datetime.now(UTC), {})


def test_a_label_may_hold_any_text() -> None:
    made = MetricsPage()
    made.add("sickbay_nodes", 1, 'a"b\\c\nd', "READY")
    (family,) = text_string_to_metric_families(made.text())
    assert family.samples[0].labels["pool"] == 'a"b\\c\nd'


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES.values():
        assert re.fullmatch(r"(sickbay|process)(_[a-z]+)+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.kind in {"counter", "gauge"}
        assert family.help.endswith(".")
        assert all(re.fullmatch("[a-z]+", label) for label in family.labels)


def test_every_cause_is_named_in_the_help() -> None:
    for cause in CauseClass:
        assert cause in FAMILIES["sickbay_interruptions_total"].help


def test_the_table_is_in_the_order_of_the_page_it_documents_and_each_name_is_there_once() -> None:
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    assert len({row["name"] for row in rows}) == len(rows) == len(FAMILIES)
