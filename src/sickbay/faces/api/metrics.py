"""Time series of nodes: for charts, and as a page that Prometheus scrapes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta

from sickbay.faces.answers import PointAnswer, Series
from sickbay.faces.api import requests
from sickbay.faces.api.examples import NODE_PATH
from sickbay.faces.api.nodes import found
from sickbay.faces.api.route import ApiRequest, PlainAnswer, Route
from sickbay.faces.archive import iso
from sickbay.faces.explain import node_answer
from sickbay.model.incident import Incident
from sickbay.model.job import Job

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def series(ask: ApiRequest, query: requests.OfSeries) -> Series:
    node, kept = found(ask.archive, ask.path["cluster"], ask.path["name"]), ask.backend.metrics
    now = ask.backend.now()
    since = now - timedelta(hours=query.hours)
    points = kept.read(node.id, query.series, since, now) if kept is not None and query.series else ()
    return Series(
        node=node.id,
        series=list(kept.series(node.id)) if kept is not None else [],
        points=[PointAnswer(at=iso(point.at), mean=point.mean, highest=point.highest) for point in points],
    )


def page(ask: ApiRequest) -> PlainAnswer:
    """Everything that was measured last, and how the fleet is."""
    samples: dict[str, list[str]] = {}
    for name, labels, value in (*_fleet(ask), *_measured(ask)):
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        samples.setdefault(name, []).append(f"{name}{{{inside}}} {value:.10g}")
    lines = [line for name in sorted(samples) for line in (f"# TYPE {name} gauge", *samples[name])]
    return PlainAnswer("\n".join([*lines, ""]), TEXT)


def _fleet(ask: ApiRequest) -> Iterator[tuple[str, Mapping[str, str], float]]:
    archive = ask.archive
    states = Counter((node.pool, node_answer(archive, node).state) for node in archive.nodes())
    for (pool, state), count in sorted(states.items()):
        yield "sickbay_nodes", {"pool": pool, "state": state}, count
    incidents = Counter(
        (one.pool, one.fault.code, one.fault.monitor_class, one.phase.value)
        for one in ask.all_of(Incident, "incident")
        if one.open
    )
    for (pool, code, word, phase), count in sorted(incidents.items()):
        yield "sickbay_incidents_open", {"pool": pool, "fault": code, "class": word, "phase": phase}, count
    jobs = Counter(job.state for job in ask.all_of(Job, "job") if job.open)
    for job_state, count in sorted(jobs.items()):
        yield "sickbay_jobs_open", {"state": job_state}, count


def _measured(ask: ApiRequest) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """`gpu.0.temperature` is the temperature of the gpu 0, `cpu.busy` how busy the cpu is."""
    latest = ask.backend.metrics.latest() if ask.backend.metrics is not None else {}
    for node, (_, values) in sorted(latest.items()):
        for name, value in values.items():
            family, *rest = name.split(".")
            which = {family: ".".join(rest[:-1])} if len(rest) > 1 else {}
            yield _word(f"sickbay_{family}_{rest[-1] if rest else 'value'}"), {"node": node, **which}, value


def _word(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


ROUTES = (
    Route(
        "GET", "/v1/nodes/{cluster}/{name}/metrics", series, "What was measured on a node, for charts",
        query_example={"series": "gpu.0.temperature"}, path_example=NODE_PATH,
        answer_example={
            "node": "lab/train-0000",
            "series": ["gpu.0.temperature"],
            "points": [{"at": "2026-03-01T00:00:00.000Z", "mean": 61.0, "highest": 63.0}],
        },
    ),
    Route(
        "GET", "/metrics", page, "The newest values of all nodes and the fleet's state, for Prometheus",
        media="text/plain",
        answer_example='# TYPE sickbay_nodes gauge\nsickbay_nodes{pool="lab/train",state="READY"} 8\n',
    ),
)  # fmt: skip
