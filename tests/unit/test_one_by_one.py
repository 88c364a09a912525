"""A table of cases in one test says as much as a test for each."""

import pytest
from tests.support.cases import one_by_one


def test_each_case_that_fails_is_named_and_none_is_left_out() -> None:
    tried: list[tuple[int, str]] = []

    @one_by_one("word", ["a", "b"])
    @one_by_one("number, twice", [(1, 2), (2, 5), (3, 6)])
    def doubled(number: int, twice: int, word: str) -> None:
        tried.append((number, word))
        assert 2 * number == twice

    with pytest.raises(AssertionError, match="2 of 2 cases") as told:
        doubled()
    assert tried == [(number, word) for word in "ab" for number in (1, 2, 3)]
    assert str(told.value).count("{'number': 2, 'twice': 5}") == 2


def test_what_did_not_raise_or_was_skipped_is_named_too() -> None:
    @one_by_one("number", [1, 2])
    def raises(number: int) -> None:
        if number == 1:
            pytest.skip("not today")
        with pytest.raises(ValueError, match="never"):
            del number

    with pytest.raises(AssertionError, match=r"(?s)2 of 2 cases.*not today.*DID NOT RAISE"):
        raises()


def test_a_table_without_cases_is_no_test() -> None:
    @one_by_one("number", [])
    def nothing(number: int) -> None:
        del number

    with pytest.raises(AssertionError, match="there is no case"):
        nothing()
