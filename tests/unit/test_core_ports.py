"""What clusters, ranks and agents say late, twice or out of order, learned by the real engine's own functions."""

from datetime import UTC, datetime

import pytest
from tests.unit.test_reception import NODE, Door, report

from sickbay.model.facts import Outcome
from sickbay.model.protocol import Answered, RunReset

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("waiting", [20, 60, 300])
def test_an_answer_to_a_later_command_counts_however_many_wait_before_it(waiting: int) -> None:
    door = Door()
    for number in range(waiting):
        door.post(RunReset(key=f"k{number}"), name=f"c{number:04d}")
    door.reception.receive(report(Answered(command=f"c{waiting - 1:04d}", result="refused", text="busy")))
    assert [fact.news for fact in door.facts()] == [
        Outcome(key=f"k{waiting - 1}", result="rejected", sends=0, text="busy")
    ]
    assert f"c{waiting - 1:04d}" not in [command.id for command in door.store.mail(NODE, limit=1000)]
