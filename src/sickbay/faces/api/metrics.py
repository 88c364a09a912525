"""Time series of nodes: for charts, and as a page that Prometheus scrapes."""

from collections import Counter
from collections.abc import Collection
from datetime import timedelta

from sickbay import __version__
from sickbay.brain.admit import limit_for
from sickbay.brain.showing import state_of
from sickbay.faces.answers import PointAnswer, Series
from sickbay.faces.api import requests
from sickbay.faces.api.examples import NODE_PATH
from sickbay.faces.api.families import TEXT, MeasuredSeries, MetricsPage, labels_of
from sickbay.faces.api.nodes import found
from sickbay.faces.api.route import ApiRequest, PlainAnswer, Route
from sickbay.faces.archive import iso
from sickbay.hosts.backend import Backend
from sickbay.hosts.census import Census
from sickbay.hosts.process import process_figures
from sickbay.hosts.tally import CauseClass, FleetTally
from sickbay.model.clock import INGEST, LEADER, WatchedClock
from sickbay.model.fleet import Brake, Ledger, Node
from sickbay.model.incident import Incident
from sickbay.model.job import Job, JobState
from sickbay.model.policy import Policy


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


def page(ask: ApiRequest, query: requests.OfMetrics) -> PlainAnswer:
    """Everything that was measured last, and how the fleet is. It reads a few rows, however large the fleet."""
    page, backend = MetricsPage(), ask.backend
    leads = ask.shared.leads is None or ask.shared.leads()
    trouble = ask.shared.trouble() if ask.shared.trouble is not None else ""
    page.add("sickbay_build_info", 1, __version__)
    page.add("sickbay_controller_leads", leads)
    page.add("sickbay_controller_trouble", bool(trouble))
    for name, value in process_figures().items():
        page.add(name, value)
    if leads:  # else each replica would tell of the same nodes, and a sum would count them twice
        census = backend.census
        if not census.fed:
            census = Census()
            census.seed(backend.store)
        _fleet(page, census, backend)
        _counters(page, census.tally, backend.clusters.keys())
        _loop(page, backend)
        if query.measured:
            _measured(page, backend)
    return PlainAnswer(page.text(), TEXT)


def _fleet(page: MetricsPage, census: Census, backend: Backend) -> None:
    nodes, jobs, now = census.all_of(Node), census.all_of(Job), backend.now()
    states = Counter((node.pool, state_of(node, census.incident(node.incident))) for node in nodes)
    page.add_all("sickbay_nodes", states.items())
    page.add_all("sickbay_agents", Counter((node.pool, node.agent.lower()) for node in nodes).items())
    open_ = Counter(
        (one.pool, one.fault.code, one.fault.monitor_class, one.phase.value) for one in census.all_of(Incident)
    )
    page.add_all("sickbay_incidents_open", open_.items())
    by_state = Counter(job.state for job in jobs)
    page.add_all("sickbay_jobs_open", (((state,), by_state[state]) for state in JobState if not state.terminal))
    lost = Counter(job.spec.cluster for job in jobs if job.interruptions and not job.interruptions[-1].closed)
    page.add_all("sickbay_jobs_interrupted", (((cluster,), lost[cluster]) for cluster in backend.clusters))
    for ledger in census.all_of(Ledger):
        _budget(page, ledger, backend.policy)
    on = Counter(brake.signature for brake in census.all_of(Brake) if brake.tripped_at is not None)
    page.add_all("sickbay_brakes_on", (((signature,), count) for signature, count in on.items()))
    withheld = [row for row in census.withheld() if row.until is None or row.until > now]
    page.add("sickbay_pauses", sum(row.pauses for row in withheld))
    page.add("sickbay_exclusions", sum(row.excuse for row in withheld))


def _budget(page: MetricsPage, ledger: Ledger, policy: Policy) -> None:
    limit = limit_for(ledger.pool, policy)
    size = limit.size or ledger.size
    page.add("sickbay_pool_seats", size, ledger.pool)
    page.add("sickbay_pool_out", ledger.out, ledger.pool)
    page.add("sickbay_pool_out_limit", limit.out(size), ledger.pool)
    page.add("sickbay_pool_repairing", ledger.repairing, ledger.pool)
    page.add("sickbay_pool_repairing_limit", limit.repairing(size), ledger.pool)
    page.add("sickbay_pool_held", ledger.held, ledger.pool)


def _counters(page: MetricsPage, tally: FleetTally, clusters: Collection[str]) -> None:
    # Zero until it happens: else the first time would be no rise, and no alert would see it.
    for cluster in clusters:
        page.add("sickbay_jobs_submitted_total", 0, cluster)
        page.add("sickbay_job_attempts_total", 0, cluster)
        for state in JobState:
            if state.terminal:
                page.add("sickbay_jobs_ended_total", 0, cluster, state)
        for cause in CauseClass:
            page.add("sickbay_interruptions_total", 0, cluster, cause)
            page.add("sickbay_interruption_seconds_total", 0, cluster, cause)
    for name, counting in (
        ("sickbay_incidents_opened_total", tally.opened),
        ("sickbay_incidents_entered_total", tally.entered),
        ("sickbay_incidents_closed_total", tally.closed),
        ("sickbay_faults_total", tally.faults),
        ("sickbay_repairs_total", tally.repairs),
        ("sickbay_jobs_submitted_total", tally.submitted),
        ("sickbay_jobs_ended_total", tally.ended),
        ("sickbay_job_attempts_total", tally.attempts),
        ("sickbay_interruptions_total", tally.interruptions),
        ("sickbay_interruption_seconds_total", tally.lost_seconds),
        ("sickbay_notices_total", tally.notices),
        ("sickbay_effects_sent_total", tally.sent),
        ("sickbay_effects_total", tally.effects),
    ):
        page.add_all(name, list(counting.values.items()))


def _loop(page: MetricsPage, backend: Backend) -> None:
    loop, now = backend.loop, backend.now()
    page.add("sickbay_rounds_total", loop.rounds)
    page.add("sickbay_round_seconds_total", loop.seconds)
    page.add("sickbay_commits_total", backend.census.units)
    page.add("sickbay_commits_refused_total", loop.refused)
    page.add_all("sickbay_facts_total", (((kind,), times) for kind, times in list(loop.facts.items())))
    page.add("sickbay_planning_lag_seconds", backend.lag().total_seconds())
    sources = (INGEST, LEADER, *backend.clusters)
    for row in backend.store.load([f"clock:{source}" for source in sources]).values():
        if isinstance(row.row, WatchedClock) and row.row.last is not None:
            page.add("sickbay_source_age_seconds", max(0.0, now.timestamp() - row.row.last), row.row.source)


def _measured(page: MetricsPage, backend: Backend) -> None:
    """`gpu.0.temperature` is the temperature of the gpu 0, `cpu.busy` how busy the cpu is."""
    latest = backend.metrics.latest() if backend.metrics is not None else {}
    known: dict[str, MeasuredSeries] = {}  # the nodes of a fleet have mostly the same
    for node, (_, values) in latest.items():
        for name in values.keys() - known.keys():
            known[name] = _series_of(name)
        page.add_measured(node, ((known[name], value) for name, value in values.items()))


def _series_of(name: str) -> MeasuredSeries:
    family, *rest = name.split(".")
    which = {} if len(rest) < 2 or family == "node" else {_word(family): ".".join(rest[:-1])}
    said = f"The newest {family}.…{rest[-1]}" if which else f"The newest {name}"
    metric = _word(f"sickbay_{family}_{rest[-1] if rest else 'value'}")
    return MeasuredSeries(metric, labels_of(which.items()), f"{said} that a node's agent has measured.")


def _word(name: str) -> str:
    word = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return word if word[:1].isalpha() else f"x{word}"


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
        answer_example=(
            "# HELP sickbay_nodes Seats by state; an empty seat is OUT.\n# TYPE sickbay_nodes gauge\n"
            'sickbay_nodes{pool="lab/train",state="READY"} 8\n'
        ),
    ),
)  # fmt: skip
