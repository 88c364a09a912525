"""The store's contract: commands for agents, kept until they are answered (`ports.mail`)."""

from datetime import timedelta
from threading import Thread

from sickbay.model.fleet import NodeId
from sickbay.model.protocol import RunCheck, RunReset
from sickbay.model.rows import Unit, WaitMark
from sickbay.ports.store import Store
from sickbay.testing.store_nouns import LATER, NOON, command, node

N, M = NodeId("c/a"), NodeId("c/b")


def waiting(store: Store, node_id: NodeId = N, limit: int = 20) -> list[str]:
    return [each.id for each in store.mail(node_id, limit)]


class MailContract:
    """Every store is a post office."""

    def test_a_command_waits_for_its_node_as_it_was_posted(self, store: Store) -> None:
        look = command("look")
        check = type(look)(
            id="check",
            node=N,
            order=RunCheck(check="v", level=3, profile="p"),
            posted_at=LATER,
            expires_after=0.5,
        )
        reset = type(look)(
            id="reset", node=N, order=RunReset(key="k", devices=(1, 3)), posted_at=LATER, expires_after=1
        )
        store.post([look, check, reset])
        assert list(store.mail(N)) == [look, check, reset]
        assert list(store.mail(M)) == []

    def test_posting_nothing_and_striking_nothing_is_allowed(self, store: Store) -> None:
        store.post([])
        store.strike([])
        assert waiting(store) == []

    def test_posted_twice_is_posted_once_and_keeps_its_place(self, store: Store) -> None:
        store.post([command("first"), command("second")])
        store.post([command("third"), command("first", at=LATER)])
        store.post([command("fourth"), command("fourth")])
        assert list(store.mail(N)) == [command(name) for name in ("first", "second", "third", "fourth")]

    def test_the_oldest_come_first_and_no_more_than_asked_for(self, store: Store) -> None:
        for name in ("z", "y", "x"):
            store.post([command(name), command(f"{name} of another", "b")])
        assert waiting(store) == ["z", "y", "x"]
        assert waiting(store, limit=2) == ["z", "y"]
        assert waiting(store, M) == ["z of another", "y of another", "x of another"]

    def test_for_whom_something_waits_is_told_of_many_nodes_at_once(self, store: Store) -> None:
        nodes = {NodeId("c/a"), NodeId("c/b"), NodeId("c/d")}
        assert set(store.mailed(nodes)) == set()
        store.post([command("first"), command("second"), command("of another", "b"), command("of a third", "e")])
        assert set(store.mailed(nodes)) == {N, M}
        assert set(store.mailed(())) == set()
        store.strike(["of another"])
        assert set(store.mailed(nodes)) == {N}

    def test_reading_takes_nothing_away(self, store: Store) -> None:
        store.post([command("a")])
        assert waiting(store) == waiting(store) == ["a"]

    def test_what_was_struck_waits_no_longer(self, store: Store) -> None:
        store.post([command("a"), command("b"), command("c", "b")])
        store.strike(["a", "c"])
        assert waiting(store) == ["b"]
        assert waiting(store, M) == []

    def test_striking_what_is_not_there_changes_nothing(self, store: Store) -> None:
        store.post([command("a")])
        store.strike({"never posted", "nor this"})
        assert waiting(store) == ["a"]
        store.strike(["a"])
        store.strike(["a"])
        assert waiting(store) == []

    def test_mail_needs_no_lease_raises_no_version_and_wakes_nobody(self, store: Store, epoch: int) -> None:
        store.commit(Unit(writes={"node:c/a": node("a")}, waits={"node:c/a": WaitMark(on={"node:c/b": 0})}), epoch)
        before = store.load(["node:c/a"])
        store.resign("the suite")
        store.post([command("a")])
        store.strike(["a"])
        assert store.load(["node:c/a"]) == before
        assert list(store.due({})) == []

    def test_letters_that_nobody_fetched_are_forgotten_with_age(self, store: Store) -> None:
        store.post([command("old"), command("new", at=LATER), command("of another", "b")])
        assert store.forget(NOON) == 0
        assert store.forget(NOON + timedelta(hours=1)) == 2
        assert waiting(store) == ["new"]
        assert waiting(store, M) == []

    def test_of_several_who_post_and_strike_at_once_none_is_in_the_way_of_another(self, store: Store) -> None:
        letters = [command(f"{number}") for number in range(20)]

        def post_and_strike(*, backwards: bool) -> None:
            for _ in range(5):
                store.post(letters[::-1] if backwards else letters)
                store.strike([each.id for each in letters if int(each.id) % 2])

        threads = [Thread(target=post_and_strike, kwargs={"backwards": turn % 2 == 0}) for turn in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert sorted(waiting(store, limit=100)) == sorted(each.id for each in letters if int(each.id) % 2 == 0)
