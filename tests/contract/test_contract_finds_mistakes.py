"""The contract suite is put to the test: a sentence of it fails for each deliberate mistake in an adapter."""

from collections.abc import Iterator

import pytest
from tests.support.local_cluster_rig import PATIENCE, LocalRig
from tests.support.mistaken_adapters import MISTAKES, AdapterMistake

from sickbay.clusters.local.cluster import LocalCluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRig]:
    rig = LocalRig(tmp_path_factory.mktemp("local"))
    yield rig
    rig.close()


@pytest.fixture
def rig(room: LocalRig) -> Iterator[LocalRig]:
    yield room
    room.patience = PATIENCE
    room.rewire()
    room.clean()


@pytest.mark.parametrize("mistake", MISTAKES, ids=[str(mistake.adapter.__name__) for mistake in MISTAKES])
def test_a_mistake_in_the_adapter_is_found(rig: LocalRig, mistake: AdapterMistake) -> None:
    rig.patience = mistake.patience
    adapter = mistake.adapter(rig.root)
    if isinstance(adapter, LocalCluster):
        rig.rewire(cluster=adapter)
    else:
        rig.rewire(machines=adapter)
    with pytest.raises((Exception, pytest.fail.Exception)) as found:
        mistake.sentence(rig)
    assert not isinstance(found.value, pytest.skip.Exception)
    assert mistake.found in repr(found.value)
