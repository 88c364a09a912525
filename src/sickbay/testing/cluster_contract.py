"""The contract of the Cluster, Machines and Checks ports as a suite, for every set of adapters.

    class TestMyCluster(ClusterContract):
        @pytest.fixture
        def rig(self):
            return MyRig(…)

What an adapter cannot do by its capabilities is skipped, with the reason. `cluster_rig` says what a rig must offer.
"""

from sickbay.testing.cluster_checks import CheckContract
from sickbay.testing.cluster_jobs import JobContract, LogContract, NativeContract
from sickbay.testing.cluster_nodes import CordonContract
from sickbay.testing.cluster_reads import ReadContract
from sickbay.testing.cluster_repairs import RepairContract
from sickbay.testing.cluster_rig import ClusterRig
from sickbay.testing.cluster_specs import SpecContract

__all__ = ["ClusterContract", "ClusterRig"]


class ClusterContract(
    CordonContract, ReadContract, JobContract, NativeContract, LogContract, RepairContract, CheckContract, SpecContract
):
    """Every sentence of the three ports' contracts. The fixture `rig` gives a fresh rig to each test."""
