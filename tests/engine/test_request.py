import numpy as np
import pytest

from leafbeam.engine import Limits, Request
from leafbeam.errors import ArgumentError, RequestError


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_items": 0}, "num_items must be an integer of at least 1, not 0"),
        ({"num_items": True}, "num_items"),
        ({"num_items": 2.0}, "num_items"),
        ({"num_beams": -1}, "num_beams"),
        ({"scoring": "fulll"}, "scoring must be 'full', 'allowed' or 'vocabulary', not 'fulll'"),
        ({"scoring": None}, "scoring"),
        ({"history": "abc"}, "history must be a list of item ids, not 'abc'"),
        ({"history": 5}, "history must be a list"),
        ({"history": [1, 2.5]}, "history must hold item ids"),
        ({"history": [True]}, "history must hold item ids"),
        ({"deny_item_ids": [None]}, "deny_item_ids must hold item ids"),
        ({"rules": "fresh"}, "rules must be a list of rule names, not 'fresh'"),
        ({"rules": [1]}, "rules must be a list of rule names"),
    ],
)
def test_invalid_fields_are_rejected_with_a_reason(fields, says):
    with pytest.raises(RequestError, match=says):
        Request(**fields)


def test_arrays_and_lists_become_plain_tuples():
    request = Request(history=np.array([3, 4]), deny_item_ids=["a"], rules=["x"], num_items=np.int64(3))
    assert (request.history, request.deny_item_ids, request.rules, request.num_items) == ((3, 4), ("a",), ("x",), 3)
    assert type(request.history[0]) is int


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_items": 1_000_000}, "num_items must be from 1 to 256, not 1000000"),
        ({"num_items": 10**5000}, "not a number of more than 18 digits"),
        ({"num_beams": 513}, "num_beams must be from 1 to 512, not 513"),
        ({"history": range(2049)}, "history may hold up to 2,048 entries, not 2,049"),
        ({"deny_item_ids": range(10_001)}, "deny_item_ids may hold up to 10,000"),
        ({"rules": ["a"] * 17}, "rules may hold up to 16"),
    ],
)
def test_requests_beyond_the_limits_are_rejected_not_cut(fields, says):
    with pytest.raises(RequestError, match=says):
        Limits().check(Request(**fields))


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match="needs at least as many beams"):
        Limits(max_items=30, max_beams=20)
    with pytest.raises(ArgumentError, match="max_rules"):
        Limits(max_rules=0)


@pytest.mark.parametrize("wrong", [{"history": ["i1"]}, "i1", None])
def test_what_is_no_request_is_named(wrong):
    with pytest.raises(RequestError, match=rf"expected a Request, such as .*, got {type(wrong).__name__}"):
        Limits().check(wrong)
