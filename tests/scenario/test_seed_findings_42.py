"""A storm of silence lasts while its nodes are lost, whoever falls silent later."""

import pytest
from tests.support.wards import HOUR, OpenWard, policy_with

from sickbay.model.policy import Limit

ROOMY = policy_with(limits=(Limit(out_percent=50, repairing_percent=50),))


@pytest.mark.slow
def test_one_more_that_falls_silent_hours_later_does_not_end_the_brake_of_those_who_are_still_lost(
    ward: OpenWard,
) -> None:
    w = ward(nodes=20, policy=ROOMY)
    for node in w.nodes[5:9]:
        w.world.lose_node(node)
    w.run(HOUR)
    assert w.brake("cluster:sim:silence").tripped_at is not None
    w.world.lose_node(w.nodes[12])
    w.run(2 * HOUR)
    assert w.brake("cluster:sim:silence").tripped_at is not None, "five nodes are lost"
    assert w.brake("pool:sim/train:silence").tripped_at is not None
