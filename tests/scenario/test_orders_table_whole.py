"""Every order in every phase and mode that docs/orders.md publishes."""

import pytest
from tests.support import orders_table

pytestmark = pytest.mark.slow

COLUMNS = [(mode, phase) for mode, phases in orders_table.SITUATIONS.items() for phase in phases]


@pytest.mark.parametrize(("mode", "phase"), COLUMNS)
def test_every_order_of_a_situation_is_answered_as_published(mode: str, phase: str) -> None:
    found = {order: orders_table.carry_out(mode, phase, order).text for order in orders_table.ORDERS}
    published = orders_table.published()
    assert found == {order: published[mode, phase, order] for order in orders_table.ORDERS}
