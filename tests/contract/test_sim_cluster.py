"""The simulated cluster keeps the ports' contract, whether it places jobs or not, keeps seats or not."""

import pytest
from tests.support.sim_cluster_rig import SimRig

from sickbay.model.fleet import Capability
from sickbay.sim.chaos import Odds
from sickbay.sim.context import CLUSTER_CAN
from sickbay.testing.cluster_contract import ClusterContract

KINDS = {
    "places, keeps seats": CLUSTER_CAN,
    "places, new seats": CLUSTER_CAN - {Capability.SEAT_KEPT},
    "chooses itself, keeps seats": CLUSTER_CAN - {Capability.PLACE},
    "chooses itself, new seats": CLUSTER_CAN - {Capability.PLACE, Capability.SEAT_KEPT},
    "chooses itself, holds": CLUSTER_CAN - {Capability.PLACE} | {Capability.HOLDS},
}


class TestSimCluster(ClusterContract):
    @pytest.fixture(scope="class", params=list(KINDS.values()), ids=list(KINDS))
    @classmethod
    def shared_rig(cls, request: pytest.FixtureRequest) -> SimRig:
        return SimRig(request.param)


class TestSimClusterWithDoubledCallsAndLateReports(ClusterContract):
    """What the network may do without anybody's fault: every call arrives twice, every report late or twice."""

    @pytest.fixture(scope="class", params=range(3))
    @classmethod
    def shared_rig(cls, request: pytest.FixtureRequest) -> SimRig:
        odds = Odds(doubled=1.0, report_late=0.5, report_twice=0.5, lag_spread=3.0)
        return SimRig(CLUSTER_CAN, odds, seed=request.param)
