"""Examples of the API's objects. A test holds each against its schema."""

from typing import Any

NODE_PATH = {"cluster": "lab", "name": "train-0000"}

NODE: dict[str, Any] = {
    "id": "lab/train-0000",
    "pool": "lab/train",
    "state": "OUT",
    "schedulable": False,
    "boot_id": "b-7",
    "instance_id": "i-0a12",
    "devices": [{"index": 0, "serial": "GPU-5d1c"}],
    "job": None,
    "jobs": [],
    "incident": "i12",
    "cordons": ["sickbay:i12"],
    "because": "REPAIRING: waiting for a new boot",
}

JOB: dict[str, Any] = {
    "id": "llama-3f2a1",
    "name": "llama",
    "owner": "bob",
    "state": "RUNNING",
    "attempt": 2,
    "restarts": 0,
    "pool": "lab/train",
    "nodes": ["lab/train-0001", "lab/train-0002"],
    "step": 120,
    "resumed_from": 100,
    "resumed_of": None,
    "continues": None,
    "continued_by": None,
    "saved": 110,
    "saved_at": "2026-01-01T00:12:00.000Z",
    "save_failed": "",
    "doing": "saving attempt-2/step-120: 412 of 990 GB",
    "checkpoint": "/shared/llama",
    "submitted_at": "2026-01-01T00:00:00.000Z",
    "ended_at": None,
    "diagnosis": "",
    "queue": None,
    "interruptions": [
        {
            "attempt": 1,
            "cause": "xid.79 on lab/train-0000",
            "incidents": ["i12"],
            "stages": {
                "detected": "2026-01-01T00:10:00.000Z",
                "stopped": "2026-01-01T00:10:00.400Z",
                "diagnosed": "2026-01-01T00:10:00.450Z",
                "placed": "2026-01-01T00:10:00.460Z",
                "gated": None,
                "started": "2026-01-01T00:10:00.700Z",
                "first_step": "2026-01-01T00:10:04.000Z",
            },
            "training_again_after": 4.0,
        }
    ],
    "because": "",
}

ONE_JOB: dict[str, Any] = {
    **JOB,
    "command": ["python", "train.py"],
    "cwd": "/shared/code",
    "env": ["PATH"],
    "env_files": ["/home/ann/llama.env"],
    "storage": ["/shared"],
    "image": "",
    "native": {},
    "attempts": [
        {
            "number": 1,
            "began_at": "2026-01-01T00:00:01.000Z",
            "started_at": "2026-01-01T00:00:04.000Z",
            "ended_at": "2026-01-01T00:10:00.400Z",
            "nodes": 2,
            "names": ["lab/train-0000", "lab/train-0001"],
            "reason": "failed",
            "first_failed": {
                "rank": 0,
                "node": "lab/train-0000",
                "exit_code": -9,
                "signal": "SIGKILL",
                "why": "GPU 0 fell off the bus",
                "at": "2026-01-01T00:10:00.400Z",
            },
            "exit_codes": {},
            "because": "xid.79 on lab/train-0000",
            "last_lines": ["step 100 loss 2.31"],
        },
        {
            "number": 2,
            "began_at": "2026-01-01T00:10:00.460Z",
            "started_at": "2026-01-01T00:10:00.700Z",
            "ended_at": None,
            "nodes": 2,
            "names": ["lab/train-0001", "lab/train-0002"],
            "reason": None,
            "first_failed": None,
            "exit_codes": {},
            "because": "",
            "last_lines": [],
        },
    ],
}

INCIDENT: dict[str, Any] = {
    "id": "i12",
    "node": "lab/train-0000",
    "incident_kind": "fault",
    "fault": {
        "code": "xid.79",
        "component": "gpu",
        "severity": "fatal",
        "evidence": ["NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."],
    },
    "remedy": "reboot",
    "phase": "REPAIRING",
    "opened_at": "2026-01-01T00:10:00.000Z",
    "closed_at": None,
    "stages": [
        {"phase": "SUSPECT", "entered_at": "2026-01-01T00:10:00.000Z", "seconds": 0.1, "because": "xid.79"},
        {"phase": "REPAIRING", "entered_at": "2026-01-01T00:10:00.100Z", "seconds": 20.0, "because": "reboot"},
    ],
    "tries": [{"rung": "reboot", "result": "started", "at": "2026-01-01T00:10:00.100Z"}],
    "jobs": ["llama-3f2a1"],
    "because": "waiting for a new boot",
}

ORDER: dict[str, Any] = {
    "id": "order-5f2a1c9d3e",
    "verb": "reboot",
    "target": "lab/train-0000",
    "by": "ann",
    "reason": "its fan is loud",
    "asked_at": "2026-01-01T00:10:00.000Z",
    "verdict": "under_way",
    "because": "REPAIRING: waiting for proof of reboot",
    "until": "2026-01-01T00:25:00.000Z",
    "then": "it is given up, and the next step is decided",
    "changed_by": [],
    "incident": "i12",
    "job": None,
}

TOLD: dict[str, Any] = {
    "at": "2026-01-01T00:10:00.100Z",
    "what": "decided",
    "about": "incident:i12",
    "text": "reboots the node: xid.79 asks for reboot",
    "event": "intent",
}

EXPLAINED: dict[str, Any] = {
    "kind": "node",
    **NODE,
    "now": "lab/train-0000 is OUT (i12 REPAIRING): it is out of service for xid.79, and it is rebooted.",
    "story": [TOLD],
    "chapter": "incident i12",
    "earlier": {"lines": 3, "incidents": 1, "since": "2025-12-24T08:00:00.000Z"},
    "waits_for": {
        "because": "waiting for a new boot",
        "since": "2026-01-01T00:10:00.000Z",
        "until": {"about": "2026-01-01T00:25:00.000Z", "clock": "lab", "stands_since": None},
        "then": "it is given up, and the next step is decided",
        "would": "",
        "changed_by": ["it is seen under a new boot", "you stop it here: the node stays out until a person decides"],
        "ways_out": [
            {"what": "it is seen under a new boot", "command": ""},
            {
                "what": "you stop it here: the node stays out until a person decides",
                "command": 'sickbay hold i12 --reason "WHY"',
            },
        ],
        "behind": [],
        "budget": None,
        "notes": [],
    },
    "as_of": "2026-01-01T00:10:20.000Z",
}

BUDGET: dict[str, Any] = {
    "pool": "lab/train",
    "size": 4,
    "out": 1,
    "may_be_out": 1,
    "repairing": 1,
    "may_be_repairing": 1,
    "held": 0,
    "used_by": [],
}

BRAKE: dict[str, Any] = {
    "scope": "pool:lab/train",
    "signature": "xid.79",
    "tripped_at": "2026-01-01T00:10:00.000Z",
    "nodes": ["lab/train-0000", "lab/train-0001", "lab/train-0002"],
    "goes_off": "2026-01-01T00:50:00.000Z",
}

WITHHELD: dict[str, Any] = {
    "id": "exclude-311",
    "fault": "xid.63",
    "pool": "*",
    "node": "*",
    "until": None,
    "by": "ann",
    "because": "exclude by ann: known, harmless",
}

FLEET: dict[str, Any] = {
    "nodes": [NODE],
    "jobs": [JOB],
    "incidents": [INCIDENT],
    "budgets": [BUDGET],
    "brakes": [BRAKE],
    "withheld": [WITHHELD],
    "trouble": "",
    "as_of": "2026-01-01T00:10:20.000Z",
}

REPORT: dict[str, Any] = {
    "proto": 1,
    "node": "lab/train-0000",
    "instance_id": "i-0a12",
    "boot_id": "b-7",
    "agent_run": "r-1",
    "first_seq": 1,
    "mono_now": 812.4,
    "wall_now": 1767225600.0,
    "watermark": 812.3,
    "items": [
        {
            "seq": 1,
            "mono": 812.2,
            "source": "kmsg",
            "source_seq": 4711,
            "news": {"news": "observed", "node": "lab/train-0000", "kind": "xid", "fields": {"xid": 79, "device": 0}},
        }
    ],
}

POLL: dict[str, Any] = {
    "proto": 1,
    "node": "lab/train-0000",
    "instance_id": "i-0a12",
    "boot_id": "b-7",
    "has": [],
}

REPLY: dict[str, Any] = {"ack": 1}
