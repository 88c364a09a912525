"""The contract of the Cluster, Machines and Checks ports as a suite (conformance tests), for every set of adapters.

    class TestMyCluster(ClusterContract):
        @pytest.fixture(scope="class")
        @classmethod
        def shared_rig(cls):
            with my_cluster() as rig:
                yield rig

What an adapter cannot do by its capabilities, and what its cluster does not know, is skipped with the reason.
`cluster_rig` says what a rig must offer; docs/adapters.md how to write one.
"""

from collections.abc import Iterator

import pytest

from sickbay.testing.cluster_checks import CheckContract
from sickbay.testing.cluster_ends import EndContract, OthersContract
from sickbay.testing.cluster_jobs import JobContract, SpecContract
from sickbay.testing.cluster_logs import LogContract
from sickbay.testing.cluster_natives import NativeContract
from sickbay.testing.cluster_nodes import CordonContract, DrainContract
from sickbay.testing.cluster_reads import ReadContract
from sickbay.testing.cluster_repairs import FenceContract, RepairContract
from sickbay.testing.cluster_rig import ClusterRig
from sickbay.testing.cluster_trouble import TroubleContract

__all__ = ["ClusterContract", "ClusterRig"]


# pytest runs the last of these first: what takes machines away comes last.
class ClusterContract(
    RepairContract,
    FenceContract,
    OthersContract,
    TroubleContract,
    CheckContract,
    LogContract,
    EndContract,
    NativeContract,
    JobContract,
    DrainContract,
    SpecContract,
    CordonContract,
    ReadContract,
):
    """Every sentence of the three ports' contracts, on one cluster that is mended after each."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared_rig(cls) -> ClusterRig:
        raise NotImplementedError("give the suite a rig: a fixture `shared_rig` of the scope `class`")

    @pytest.fixture
    def rig(self, shared_rig: ClusterRig) -> Iterator[ClusterRig]:
        yield shared_rig
        shared_rig.clean()
