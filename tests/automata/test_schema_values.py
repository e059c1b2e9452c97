"""JSON Schemas whose parts are valid in ways that are easily overlooked, and objects with many parts."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_schema import schema_language
from leafbeam.errors import AutomatonError


def accepts(language: ByteDFA, *texts: str) -> list[bool]:
    return [language.accepts(text.encode()) for text in texts]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "enum": ["a", 1, None]}, ['"a"'], ["1", "null"]),
        ({"type": ["integer", "null"], "enum": ["a", 1, None, 2.5]}, ["1", "null"], ['"a"', "2.5"]),
        ({"type": "integer", "enum": [1.0, 2.5, True]}, ["1.0"], ["2.5", "true"]),
        ({"type": "number", "enum": [1, 2.5, False, "1"]}, ["1", "2.5"], ["false", '"1"']),
        ({"type": "boolean", "enum": [1, 0, True]}, ["true"], ["1", "0", "false"]),
        ({"type": "object", "enum": [[], {}, {"a": 1}]}, ["{}", '{"a":1}', '{"a": 1}'], ["[]"]),
        ({"type": "array", "enum": [[], {}, [1, 2]]}, ["[]", "[1, 2]", "[1,2]"], ["{}"]),
        ({"type": ["string", "null"], "const": None}, ["null"], ['""']),
    ],
)
def test_values_of_other_types_are_left_out(schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    """T6: an instance has to have one of the values and one of the types."""
    language = schema_language(schema, 1_000)
    assert all(accepts(language, *valid))
    assert not any(accepts(language, *invalid))
    jsonschema = pytest.importorskip("jsonschema")
    for text in (*valid, *invalid):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) == (text in valid)


@pytest.mark.parametrize(
    ("keyword", "others", "valid", "invalid"),
    [
        ("minItems", {"type": "array", "items": {"type": "null"}}, "[null,null]", "[null]"),
        ("maxItems", {"type": "array", "items": {"type": "null"}}, "[null,null]", "[null,null,null]"),
        ("minLength", {"type": "string"}, '"ab"', '"a"'),
        ("maxLength", {"type": "string"}, '"ab"', '"abc"'),
        (
            "maxProperties",
            {"type": "object", "additionalProperties": {"type": "null"}},
            '{"a":null}',
            '{"a":null,"b":null,"c":null}',
        ),
    ],
)
@pytest.mark.parametrize("written", ["2", "2.0", "2e0", "20E-1"])
def test_whole_numbers_may_be_written_as_others_are(
    keyword: str, others: dict[str, Any], valid: str, invalid: str, written: str
) -> None:
    """T6: 2.0 is a whole number."""
    language = schema_language(json.dumps({**others, keyword: "N"}).replace('"N"', written), 1_000)
    assert accepts(language, valid, invalid) == [True, False]


@pytest.mark.parametrize("value", [2.5, -1, -1.0, True, "2", None, 1e400])
def test_what_is_no_length_is_named(value: Any) -> None:
    with pytest.raises(AutomatonError, match="expected a whole number, 0 or more") as refused:
        schema_language({"type": "string", "minLength": value}, 1_000)
    assert refused.value.pointer == "#/minLength"


# ECMA-262's reading of patterns under the flag `u`, as node prints it: what matches as a whole, and what does not.
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    (r"a\x62", ["ab"], ["a", "a\\x62"]),
    (r"\u0062\u{62}", ["bb"], ["b"]),
    (r"\ud83d\ude00", ["😀"], []),
    (r"[\ud83d\ude00a]", ["😀", "a"], []),
    (r"\d\w", ["1_", "1a"], ["٣a", "1é", "é1"]),
    (r"[^\D]", ["1"], ["٣", "a"]),
    (r"[a\-z]", ["a", "-", "z"], ["b"]),
    (r"[-a][b-]", ["-b", "a-"], ["cb"]),
    (r"[+--]", ["+", ",", "-"], ["."]),
    (r"[[a]", ["[", "a"], ["b"]),
    (r"[&|]", ["&", "|"], ["a"]),
    (r"[$^.]", ["$", "^", "."], ["a"]),
    (r"(?<year>a|b)?c", ["c", "ac"], ["a"]),
    (r"a??b+?c*?", ["b", "abbcc"], ["a"]),
    (r"a{2}b{1,}c{0,1}", ["aabb", "aabc"], ["ab"]),
    (r"\p{Lu}[^\P{L}]", ["Aa", "Ωb"], ["aa", "A1"]),
    (r"\p{Script=Greek}", ["Ω", "Ψ"], ["a"]),
    (r"a b#c", ["a b#c"], ["ab", "ab#c"]),
    (r"\@\-\/\#", ["@-/#"], []),
    (r"a}", ["a}"], []),
    (r"|a", ["", "a"], ["b"]),
    (r"cat|dog", ["cat", "dog"], ["cat|dog", "catdog"]),  # an alternative of the text, not of its quotes
    (r"[0-9a-f]{2}\-[0-9a-f]{2}", ["0f-a1"], ["0fa1"]),  # as generators of schemas escape
    (r"[\w\_\'\/\-\+\*\&\<\>\(\)\,\:\.\?\!]+", ["a_'/-+*&<>(),:.?!"], ["ä", " "]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "matching", "others"), PATTERNS, ids=[pattern for pattern, _, _ in PATTERNS])
def test_patterns_mean_what_they_do_in_javascript(pattern: str, matching: list[str], others: list[str]) -> None:
    """T7: in a string, a list and an object."""
    part = {"type": "string", "pattern": f"^(?:{pattern})$"}
    for schema, around in (
        (part, "{}"),
        ({"type": "array", "items": part, "minItems": 1}, "[{}]"),
        ({"type": "object", "additionalProperties": part}, '{{"a":{}}}'),
    ):
        language = schema_language(schema, 10_000)
        for text in (*matching, *others):
            written = around.format(json.dumps(text, ensure_ascii=False))
            assert language.accepts(written.encode()) == (text in matching), written


FOREIGN = {
    r"[a-c&&[^b]]": "&&", r"[a-z--b]": "--", r"[a~~b]": "~~", r"a\x{62}": r"\\x", "(?i)a": r"\(\?i", "(?x)a b": r"\(\?x",
    "(?i:a)": r"\(\?i", "(?P<n>a)": r"\(\?P", "(?>a)": r"\(\?>", r"\pL": r"\\pL", r"\p{Greek}": "Greek", r"\a": r"\\a",
    r"\Aa": r"\\A", r"a\z": r"\\z", r"a\b": r"\\b", r"(a)\1": r"\\1", "a++": r"\+", "a**": r"\*", "a{,3}": r"\{",
    "a{2}{3}": r"\{3\}",
    "[[:alpha:]]": r"\]", "[a[bc]]": r"\]", "[]a]": r"\[\]", "[z-a]": "z-a", r"[a-\d]": "range", r"\U00000062": r"\\U",
    r"\u{110000}": r"\\u", r"\ud83d": "surrogate", "b(?=a)a": r"\(\?=", "(?<!a)b": r"\(\?<!", "(?#c)a": r"\(\?#",
    "(a": "not closed",
    "a)": "not opened", "[a": "not closed", r"\h": r"\\h", "*a": r"\*", "{": r"\{", "]": r"\]",
}  # fmt: skip


@pytest.mark.parametrize("pattern", FOREIGN)
def test_patterns_that_javascript_reads_otherwise_are_refused_by_name(pattern: str) -> None:
    """T7: or does not read at all."""
    with pytest.raises(AutomatonError, match=FOREIGN[pattern]) as refused:
        schema_language({"type": "string", "pattern": f"^{pattern}$"}, 10_000)
    assert refused.value.pointer == "#/pattern"


SEARCHED = [
    "a",
    "^a",
    "a$",
    "^a|b$",
    "(^|-)a",
    "a(b|$)",
    "^(?!ab)a",
    "^(?=.*b)a",
    "^(?!b$)[ab]+$",
    r"^[^\"]*$",
    r"\\",
    ".b",
    "a{2}",
    "^$",
]


@pytest.mark.parametrize("pattern", SEARCHED)
def test_a_pattern_may_match_anywhere_in_a_text(pattern: str) -> None:
    """T7: with ^ and $ for the ends of the text, wherever they stand, and with what JSON escapes."""
    language = schema_language({"type": "string", "pattern": pattern}, 10_000)
    rng = random.Random(pattern)
    for _ in range(400):
        text = "".join(rng.choice('aabb-"\\') for _ in range(rng.randint(0, 5)))
        written = json.dumps(text).encode()
        assert language.accepts(written) == bool(re.search(pattern.replace("$", r"\Z"), text)), text


@pytest.mark.parametrize(("form", "around"), [("hostname", "{}"), ("email", "me@{}"), ("uri", "https://{}/x")])
def test_no_host_has_two_hyphens_as_characters_3_and_4_of_a_part(form: str, around: str) -> None:
    """T8: which are for names in Punycode, and whose rest would have to be valid."""
    language = schema_language({"type": "string", "format": form}, 10_000)
    for host in ("xn--X", "xn--X.org", "a.xn--maana-pta.com", "ab--c.de", "ab--c", "a.bc--d", "xn--a-1"):
        assert accepts(language, json.dumps(around.format(host))) == [False], host
    for host in (
        "a-b.cd",
        "a--b.cd",
        "abc--d.ef",
        "a.b-c.de",
        "xn-a.bc",
        "abc-d.ef",
        "ab-c.de",
        "a-b--c.de",
        "abcd.e-f",
        "a--b",
    ):
        assert accepts(language, json.dumps(around.format(host))) == [True], host


def test_hosts_are_those_of_a_validator() -> None:
    """T8: every name of a few characters that may be written is one for another library."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    rng = np.random.default_rng(0)
    for form, around in (("hostname", "{}"), ("email", "me@{}"), ("uri", "https://{}/x")):
        language = schema_language({"type": "string", "format": form}, 10_000)
        validator = jsonschema_rs.Draft202012Validator({"type": "string", "format": form}, validate_formats=True)
        for _ in range(3_000):
            text = around.format("".join(rng.choice(list("aX1-."), rng.integers(1, 9))))
            assert not accepts(language, json.dumps(text))[0] or validator.is_valid(text), text


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("iri", "/?é:%日"),
        ("iri-reference", "/?é:#a"),
        ("idn-email", "é@.-a"),
        ("idn-hostname", "aé-.X"),
        ("uri-template", "{a},%2:*+é'"),
    ],
)
def test_names_of_all_alphabets_are_those_of_a_validator(name: str, letters: str) -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    schema, rng = {"type": "string", "format": name}, np.random.default_rng(0)
    language, validator = schema_language(schema, 10_000), jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    before, behind = {"iri": ("https://a.bc/", ""), "idn-email": ("", "@a.bc")}.get(name, ("", ""))
    allowed = 0
    for _ in range(2_000):
        text = before + "".join(rng.choice(list(letters), rng.integers(1, 9))) + behind
        accepted = accepts(language, json.dumps(text, ensure_ascii=False))[0]
        allowed += accepted
        assert not accepted or validator.is_valid(text), text
    assert 0 < allowed < 2_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("", "dictionary/{term:1}/{term}", "{+a}{?a,b*,c:9999}", "{a.b}", "{%41}", "é%20")),
        *(
            (text, False)
            for text in ("{}", "{a", "{a..b}", "{a:0}", "{a:12345}", "{=a}", "a b", "%2", "^", "{é}", "<", "{é", "}")
        ),
    ],
)
def test_a_template_is_what_rfc_6570_says(text: str, expected: bool) -> None:
    language = schema_language({"type": "string", "format": "uri-template"}, 10_000)
    assert accepts(language, json.dumps(text, ensure_ascii=False)) == [expected]


VALUES: list[dict[str, Any]] = [
    {"type": ["string", "null"]}, {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"enum": ["a", "b", None]},
    {"type": ["number", "null"], "minimum": 0}, {"$ref": "#/$defs/list"},
]  # fmt: skip
EXAMPLES = ['"x"', '"2024-02-29"', '"a"', "7.5", '["x"]']


@pytest.mark.parametrize("num_fields", [1, 2, 55, 224, 700])
@pytest.mark.parametrize("required", ["none", "some", "all"])
def test_objects_of_many_optional_fields_take_few_states(num_fields: int, required: str) -> None:
    """T9: a few states a field, whichever are there; any selection in the schema's order may be written, and no other."""
    fields = {f"field_{n}": VALUES[n % 5] for n in range(num_fields)}
    must = [name for n, name in enumerate(fields) if required == "all" or (required == "some" and n % 50 == 49)]
    parts = {"list": {"type": "array", "items": {"type": "string"}}}
    language = schema_language({"type": "object", "properties": fields, "required": must, "$defs": parts}, 100_000)
    assert language.num_states < 60 * num_fields + 100
    rng = np.random.default_rng(num_fields)
    for share in (0.0, 0.1, 0.5, 1.0):
        chosen = [(n, name) for n, name in enumerate(fields) if name in must or rng.random() < share]
        pairs = [f'"{name}": {EXAMPLES[n % 5] if n % 3 or n % 5 == 4 else "null"}' for n, name in chosen]
        assert accepts(language, f"{{{', '.join(pairs)}}}", f"{{{','.join(pairs)}}}") == [True, True]
        if len(pairs) > 1:
            swapped, doubled = [pairs[1], pairs[0], *pairs[2:]], [pairs[0], *pairs]
            wrong = [f"{{{', '.join(one)}}}" for one in (swapped, doubled)]
            assert not any(accepts(language, *wrong, f"{{{', '.join(pairs)},}}", f"{{, {', '.join(pairs)}}}"))
        if must and pairs:
            without = [pair for pair in pairs if not pair.startswith(f'"{must[-1]}"')]
            assert not any(accepts(language, f"{{{', '.join(without)}}}"))


def test_nested_objects_of_many_optional_fields() -> None:
    """T9: twenty fields of objects of twenty fields, and again."""

    def nested(depth: int) -> dict[str, Any]:
        part = {"type": ["string", "null"]} if depth == 0 else nested(depth - 1)
        return {"type": "object", "properties": {f"f{n}": part for n in range(20)}}

    language = schema_language(nested(2), 1_000_000)
    assert accepts(language, "{}", '{"f3":{}}', '{"f3": {"f0": {}, "f19": {"f7": null, "f8": "x"}}, "f4": {}}') == [True] * 3
    assert not any(accepts(language, '{"f4":{},"f3":{}}', '{"f3":{"f20":{}}}', '{"f3":null}', '{"f3":{"f7":"x"}}'))
