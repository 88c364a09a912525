"""What the doctor finds in a running controller: agents, clusters, clocks, tokens, and what withholds acts."""

from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.fleet_answers import FindingShown
from sickbay.hosts.doctor_fleet import fleet_findings
from sickbay.model.fleet import Role


def doctor(ask: ApiRequest) -> list[FindingShown]:
    leads, trouble = ask.shared.leads, ask.shared.trouble
    found = fleet_findings(
        ask.backend,
        leads=leads() if leads is not None else None,
        trouble=trouble() if trouble is not None else "",
        admin=ask.who is not None and ask.who.role is Role.ADMIN,
    )
    return [FindingShown(level=one.level, subject=one.subject, text=one.text, way_out=one.way_out) for one in found]


ROUTES = (
    Route(
        "GET", "/v1/doctor", doctor, "What is missing or follows; an admin is told of tokens, too",
        answer_example=[
            {
                "level": "missing", "subject": "agents of lab", "text": "on 1 of 8 nodes (n7) the agent is silent",
                "way_out": "systemctl status sickbay-agent says why",
            },
        ],
    ),
)  # fmt: skip
