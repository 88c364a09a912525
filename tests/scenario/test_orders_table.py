"""Some orders of each situation of docs/orders.md are carried out: answered as published, and something comes of it."""

import pytest
from tests.support import orders_table

CELLS = list(orders_table.cells())
SOME = CELLS[:: len(orders_table.ORDERS) + 1] + CELLS[4 :: len(orders_table.ORDERS)]


def test_the_page_has_every_cell() -> None:
    assert set(orders_table.published()) == set(CELLS)


@pytest.mark.parametrize(("mode", "phase", "order"), SOME)
def test_an_order_is_answered_as_published_and_something_comes_of_it(mode: str, phase: str, order: str) -> None:
    assert orders_table.carry_out(mode, phase, order).text == orders_table.published()[mode, phase, order]
