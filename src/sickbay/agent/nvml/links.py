"""NVLink: the state of each link and what it counts, for cards that have any."""

from typing import Any, Protocol

from sickbay.model.gpu import Link

MOST_LINKS = 36
LINK_COUNT = 91  # field id
REPLAY, RECOVERY, CRC_FLIT, CRC_DATA, ECC_DATA = range(5)  # nvmlNvLinkErrorCounter_t
LINK_RECOVERIES = 215  # field id, by link: what the fifth generation counts instead


class NvmlAsker(Protocol):
    def ask(self, name: str, *args: Any) -> Any: ...
    def whole(self, wanted: int | tuple[int, int]) -> int | None: ...


def links_of(card: NvmlAsker) -> tuple[Link, ...]:
    """Empty: the card has none, or the driver shows none (a PCIe card, one passed through to a virtual machine)."""
    count = card.whole(LINK_COUNT)
    most = MOST_LINKS if count is None else min(count, MOST_LINKS)
    found: list[Link] = []
    for number in range(most):
        state = card.ask("nvmlDeviceGetNvLinkState", number)
        if state is None:
            if count is None:
                break  # links are numbered without gaps
            continue
        found.append(_link(card, number, up=bool(state)))
    return tuple(found)


def _link(card: NvmlAsker, number: int, *, up: bool) -> Link:
    def errors(counter: int) -> int | None:
        value: int | None = card.ask("nvmlDeviceGetNvLinkErrorCounter", number, counter)
        return value

    recoveries = errors(RECOVERY)
    if recoveries is None:
        recoveries = card.whole((LINK_RECOVERIES, number))
    crc = [value for value in (errors(CRC_FLIT), errors(CRC_DATA)) if value is not None]
    return Link(
        number=number, up=up, replays=errors(REPLAY), recoveries=recoveries, crc_errors=sum(crc) if crc else None,
        ecc_errors=errors(ECC_DATA),
    )  # fmt: skip
