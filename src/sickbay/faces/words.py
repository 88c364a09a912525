"""Glossary: what the words in an answer mean, for `sickbay explain --words`."""

import re
from collections.abc import Iterator
from typing import Any

WORDS = {
    # nodes
    "READY": "a node that can work: a job has it, or could be given it",
    "UNKNOWN": "a node that nobody can speak for now: its agent is silent, or its cluster does not call it ready",
    "SUSPECT": "a symptom was seen; the node gets no new work, and has not been taken out of service",
    "OUT": "a node that is out of service: it is being healed, or somebody has cordoned it",
    "LOST": "a node that can be heard neither by its agent nor by its cluster",
    "HELD": "Sickbay has done what it may; the node stays out until a person decides",
    "INTAKE": "a new node that has not passed its first check",
    # an incident's phases
    "QUARANTINED": "the node is cordoned: it gets no new work",
    "DRAINING": "work leaves the node",
    "DRAINED": "nothing runs on the node any more; its repair or its check is next",
    "REPAIRING": "one repair is under way; it counts only when its proof is seen (a new boot, a new machine)",
    "VERIFYING": "a check exercises the node; it returns only if it passes",
    "WATCHED": "the fault asks for no repair; the incident is closed if it stays quiet",
    "RELEASED": "the node passed its check, and our cordon was taken back",
    "DISMISSED": "closed without a repair: it came right by itself, a check cleared it, or a person vouched for it",
    "REPLACED": "another machine has the work of this one",
    "GONE": "the node left the cluster",
    # a job's states
    "QUEUED": "the job waits for its nodes",
    "GATING": "the job's nodes are checked, then its ranks are started",
    "RUNNING": "all ranks of the job run",
    "STOPPING": "the job's ranks are being stopped",
    "DIAGNOSING": "the attempt has ended, and the reason is looked for",
    "COMPLETE": "every rank has ended with exit code 0",
    "FAILED": "the job was given up; it says why",
    "STOPPED": "a person stopped the job for good",
    # terms
    "attempt": "one run of a job: the first, and one more after each interruption",
    "brake": "many nodes showed one fault at once: nothing is done about it until a person has looked, or it is quiet",
    "budget": "how many seats of a pool may be out of service at once, and how many repairs may be under way",
    "check": "a test that exercises the hardware, from level 1 (seconds) to level 4 (long)",
    "claim": "nodes and devices that are promised to one attempt",
    "cordon": "a mark on the node in its cluster: no new work is put there",
    "exclusion": "a fault, a node or a pool that a person has said is left alone",
    "gate": "the check of all nodes of a job before its ranks start",
    "incident": "the life of one illness of one node",
    "interruption": "the loss of one attempt, from the first symptom to the first new training step",
    "pause": "a person has said that nothing is done to any node for a while",
    "pool": "nodes of one cluster that share a budget",
    "recommend": "the policy only tells people what it would do",
    "rung": "one repair of the ladder: reset_gpu, reboot, replace, from the mildest up",
    "seat": "a place for a machine in a pool, such as local/node-0; machines come and go, the seat stays",
    "vacant": "no machine has the seat",
    "window": "when repairs are allowed, in UTC",
    "xid": "the NVIDIA driver's number for an error; 'sickbay knowledge 79' says what one means",
}


def words_in(answer: Any) -> dict[str, str]:
    """The words that an answer uses, in the order of the list: states as they are written, terms in any form."""
    found = set(re.findall(r"[A-Za-z]+", " ".join(_texts(answer))))
    low = {form for word in found for form in (word.lower(), word.lower().removesuffix("s"), word.lower()[:-2])}
    return {word: meaning for word, meaning in WORDS.items() if word in (found if word.isupper() else low)}


def _texts(answer: Any) -> Iterator[str]:
    """What is said in it: the values, not the names of the fields."""
    match answer:
        case str():
            yield answer
        case dict():
            for value in answer.values():
                yield from _texts(value)
        case list():
            for value in answer:
                yield from _texts(value)
