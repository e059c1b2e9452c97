import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog.expression import MAX_CHARACTERS, MAX_DEPTH, MAX_NAMES, Expression
from leafbeam.errors import RequestError

SETS = {
    "a": frozenset({1, 2, 3, 4}),
    "b": frozenset({3, 4, 5, 6}),
    "in_stock": frozenset({1, 3, 5, 7}),
    "d-e": frozenset({2, 4, 7, 8}),
    "C2": frozenset[int](),
}


def meaning(expression: Expression) -> frozenset:
    return expression.evaluate(SETS.__getitem__)  # type: ignore[arg-type, return-value]


def spelled(depth: int) -> st.SearchStrategy[str]:
    """Expressions as people write them: with and without spaces and needless parentheses."""
    names = st.sampled_from(sorted(SETS))
    if depth == 0:
        return names
    inner = spelled(depth - 1)
    joined = st.tuples(inner, st.sampled_from([" & ", " | ", " - ", " &", "| ", "\t-\n"]), inner).map("".join)
    return st.one_of(names, joined, joined.map(lambda text: f"({text})"), joined.map(lambda text: f" ( {text}) "))


@settings(max_examples=600)
@given(spelled(4))
def test_an_expression_means_what_python_means_by_it(text: str) -> None:
    as_python = re.sub(r"[A-Za-z][A-Za-z0-9_-]*", lambda found: f"s[{found[0]!r}]", text)
    expected = eval(f"({as_python})", {"s": SETS})
    expression = Expression.parse(text)
    assert meaning(expression) == expected
    again = Expression.parse(expression.text)
    assert (again, again.text) == (expression, expression.text)
    assert expression.names <= set(SETS)


@pytest.mark.parametrize(
    "spellings",
    [
        ["a & b", "b&a", "a & (b & a)", "((b)) & ((a))"],
        ["a | b | in_stock", "in_stock | (b | a)", "b | a | in_stock | a"],
        ["a - b - in_stock", "a - in_stock - b", "a - (b | in_stock)", "(a - b) - in_stock"],
        ["a", "(a)", "a & a", "a | a"],
    ],
)
def test_different_spellings_of_one_thing_are_equal(spellings: list[str]) -> None:
    assert len({Expression.parse(text) for text in spellings}) == 1


def test_minus_binds_before_and_before_or_and_a_name_may_hold_a_minus() -> None:
    assert Expression.parse("a & b - d-e | in_stock").text == "(a & (b - d-e)) | in_stock"
    assert Expression.parse("a-b").names == {"a-b"}
    assert Expression.parse("a -b").text == "a - b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ends where a rule's name or an opening parenthesis was expected"),
        ("   ", "ends where a rule's name"),
        ("a &", "ends where a rule's name"),
        ("& a", "a rule's name or an opening parenthesis was expected at character 0, not '&'"),
        ("a b", "&, |, - or the end was expected at character 2, not 'b'"),
        ("a & not b", "at character 8, not 'b'; 'not' is a rule's name here: write a & b, a | b or a - b"),
        ("(a | b", "ends where a closing parenthesis was expected"),
        ("a)", "the end was expected at character 1, not '\\)'"),
        ("~a", "unexpected text at character 0: '~a'"),
        ("a & stock > 0", "unexpected text at character 10: '> 0'"),
        ("a; DROP TABLE items", "unexpected text at character 1: '; DROP TABLE items'"),
        ("é", "unexpected text"),
    ],
)
def test_an_invalid_expression_is_refused_with_the_position(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        Expression.parse(text)


def test_too_long_too_many_and_too_deep_are_refused() -> None:
    Expression.parse(" | ".join(["a"] * MAX_NAMES))
    Expression.parse("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)
    for text in ("a" * (MAX_CHARACTERS + 1), " | ".join(["a"] * (MAX_NAMES + 1)), "(" * (MAX_DEPTH + 1) + "a"):
        with pytest.raises(RequestError, match=r"may (have|hold|nest)"):
            Expression.parse(text)
    worst = "(" * (MAX_CHARACTERS // 2) + "|" * (MAX_CHARACTERS // 2)
    with pytest.raises(RequestError):
        Expression.parse(worst)


def test_names_are_joined_by_and() -> None:
    names = ["b", "a", "in_stock", "a"]
    random.Random(3).shuffle(names)
    assert Expression.of(names) == Expression.parse("a & b & in_stock")
