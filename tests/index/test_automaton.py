"""Automata: the same language as brute force over every short sequence, as xgrammar on a real vocabulary, as `Trie`."""

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pleach import Trie
from pleach.bench.vocabulary import real_vocabulary
from pleach.errors import ArgumentError, AutomatonError, CodesError, IndexFileError, MissingExtraError, PleachError
from pleach.index.automaton import Automaton
from pleach.index.tokens import TokenTrie

# Letters, pieces of words, the two halves of é and the whole, a token twice, one with an end inside é, and one that is no text.
LETTERS = [None, b"a", b"b", b"c", b"ab", b"bc", b"\xc3", b"\xa9", b"\xc3\xa9", b"ab", b"a\xc3"]
FIXTURE = Path(__file__).parent.parent / "fixtures" / "automaton-v1.pleach"

atoms = st.sampled_from(["a", "b", "c", "é", "ab", "[ab]", "[^a]", "[a-c]", ".", "(?:)"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "??"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
vocabularies = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=7).filter(any)


def spelled(tokens: tuple[int, ...], vocabulary: list[bytes | None]) -> str | None:
    """The text of some tokens, None where it is none."""
    parts = [vocabulary[token] for token in tokens]
    try:
        return None if None in parts else b"".join(filter(None, parts)).decode()
    except UnicodeDecodeError:
        return None


def members(automaton: Automaton, sequences: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those of the sequences that are in the language, all of one length at a time."""
    found = set()
    for length in {len(one) for one in sequences}:
        chosen = [one for one in sequences if len(one) == length]
        states = np.zeros(len(chosen), np.int64)
        for codes in np.array(chosen, np.int64).reshape(len(chosen), length).T:
            states = automaton.step(states, codes)
        ends = (states >= 0) & automaton.accepting.has(np.maximum(states, 0))
        found |= {one for one, end in zip(chosen, ends, strict=True) if end}
    return found


def distances(automaton: Automaton) -> np.ndarray:
    """How many tokens each state is from a place where a sequence may end, -1 where there is none."""
    states = np.arange(automaton.num_states)
    pointer, codes = automaton.legal(states)
    origins = np.repeat(states, np.diff(pointer))
    targets = automaton.step(origins, codes)
    assert (targets >= 0).all()
    found = np.where(automaton.accepting.has(states), 0, -1)
    for distance in range(1, automaton.num_states + 1):
        found[np.setdiff1d(origins[found[targets] == distance - 1], np.flatnonzero(found >= 0))] = distance
    return found


def same(first: Automaton, second: Automaton) -> None:
    """Equal state by state, whatever the layout."""
    states = np.arange(first.num_states)
    assert first.num_states == second.num_states
    assert first.accepting == second.accepting
    for ours, theirs in zip(first.legal(states), second.legal(states), strict=True):
        assert np.array_equal(ours, theirs)
    pointer, codes = first.legal(states)
    origins = np.repeat(states, np.diff(pointer))
    assert np.array_equal(first.step(origins, codes), second.step(origins, codes))
    assert np.array_equal(first.masks(states), second.masks(states))


@settings(max_examples=150)
@given(patterns, vocabularies, st.sampled_from([0.0, 1 / 64, 0.4, 1.0]))
def test_every_short_sequence_is_in_the_language_iff_its_text_matches(
    pattern: str, vocabulary: list[bytes | None], dense_share: float
) -> None:
    tokens = range(len(vocabulary))
    sequences = [one for length in range(5) for one in itertools.product(tokens, repeat=length)][:3000]
    expected = {
        one for one in sequences if (text := spelled(one, vocabulary)) is not None and re.fullmatch(pattern, text) is not None
    }
    if not expected:
        try:
            automaton = Automaton.from_regex(pattern, vocabulary, dense_share=dense_share)
        except AutomatonError:
            return
    automaton = Automaton.from_regex(pattern, vocabulary, dense_share=dense_share)
    assert members(automaton, sequences) == expected
    assert (distances(automaton) >= 0).all()


@settings(max_examples=60)
@given(patterns, vocabularies)
def test_rows_and_masks_are_the_same_automaton(pattern: str, vocabulary: list[bytes | None]) -> None:
    tokens = TokenTrie.of([*vocabulary, b"a", b"b", b"c", b"\xc3", b"\xa9"])
    rows = Automaton.from_regex(pattern, tokens, dense_share=1.0)
    assert len(rows.rows.mask_MW) == 0
    for share in (0.0, 0.2):
        same(rows, Automaton.from_regex(pattern, tokens, dense_share=share))
    assert len(np.unique(Automaton.from_regex(pattern, tokens, dense_share=0.0).rows.mask_MW, axis=0)) == len(
        Automaton.from_regex(pattern, tokens, dense_share=0.0).rows.mask_MW
    )


@settings(max_examples=60)
@given(patterns)
def test_no_two_states_are_equal(pattern: str) -> None:
    alphabet = [bytes([byte]) for byte in range(256)]
    automaton = Automaton.from_regex(pattern, alphabet)
    states = np.arange(automaton.num_states)
    targets = automaton.step(np.repeat(states, 256), np.tile(np.arange(256), len(states))).reshape(-1, 256)
    group = automaton.accepting.has(states).astype(np.int64)
    for _ in states:
        after = np.where(targets < 0, -1, group[targets])
        group = np.unique(np.column_stack([group, after]), axis=0, return_inverse=True)[1].reshape(-1)
    assert len(np.unique(group)) == len(states)


@settings(max_examples=60)
@given(st.lists(st.text("abcé", max_size=6), min_size=1, max_size=12), st.sampled_from([0.0, 1.0]))
def test_choices_are_all_spellings_of_their_texts(choices: list[str], dense_share: float) -> None:
    automaton = Automaton.from_choices(choices, LETTERS, dense_share=dense_share)
    short = [one for length in range(4) for one in itertools.product(range(len(LETTERS)), repeat=length)]
    assert members(automaton, short) == {one for one in short if spelled(one, LETTERS) in choices}
    assert all((one in automaton) == (spelled(one, LETTERS) in choices) for one in short[::40])
    for choice in choices:
        state = 0
        for byte in choice.encode():
            state = automaton.next(state, LETTERS.index(bytes([byte])))
        assert automaton.accepts(state)
    pattern = "|".join(choices)
    same(automaton, Automaton.from_regex(pattern, LETTERS, dense_share=dense_share))


@settings(max_examples=80)
@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=25))
def test_sequences_have_the_language_of_their_trie(sequences: list[list[int]]) -> None:
    automaton, trie = Automaton.from_sequences(sequences, 6), Trie.from_sequences(sequences, 6, max_length=5)
    reached = {(): 0}
    for _ in range(6):
        longer = {}
        for prefix, state in reached.items():
            assert automaton.accepts(state) == (prefix in trie)
            longer |= {(*prefix, int(token)): automaton.next(state, int(token)) for token in automaton.allowed(state)}
            expected = {one[len(prefix)] for one in sequences if len(one) > len(prefix) and tuple(one[: len(prefix)]) == prefix}
            assert set(automaton.allowed(state).tolist()) == expected
        reached = longer
    assert not reached


def test_equal_suffixes_are_stored_once() -> None:
    sequences = [[first, second, 7, 8, 9] for first in range(5) for second in range(5)]
    automaton = Automaton.from_sequences(sequences, 10)
    assert automaton.num_states == 6
    assert automaton.parts["rows"] == 8 * 7 + 8 * (5 + 5 + 3)


def test_a_match_that_might_have_ended_earlier_goes_on() -> None:
    alphabet = [bytes([byte]) for byte in range(256)]
    number = Automaton.from_regex(r"-?[0-9]+(\.[0-9]+)?", alphabet)
    assert [list(text) in number for text in (b"1", b"1.5", b"-12.25", b"1.", b"-", b"")] == [True] * 3 + [False] * 3
    assert [list(text) in Automaton.from_regex("a|ab|", alphabet) for text in (b"", b"a", b"ab", b"b")] == [True] * 3 + [False]
    assert [list(text) in Automaton.from_regex("(a+?|ab)*?", alphabet) for text in (b"", b"aaba", b"b")] == [True, True, False]


def test_a_pattern_that_would_be_searched_for_everywhere_is_compiled_from_its_start_only() -> None:
    assert Automaton.from_regex("x[a-z]{200}", [b"a", b"x"]).num_states == 202


def test_one_caret_and_one_dollar_around_a_pattern_change_nothing() -> None:
    alphabet = [bytes([byte]) for byte in range(128)]
    same(Automaton.from_regex("^ab?$", alphabet), Automaton.from_regex("ab?", alphabet))
    assert list(b"a$") in Automaton.from_regex(r"a\$", alphabet)
    assert list(b"a\\") in Automaton.from_regex(r"a\\$", alphabet)


def test_tokens_longer_than_masks_look_ahead_are_still_exact() -> None:
    lengths = [1, 2, 31, 32, 33, 34, 40, 64, 65]
    tokens = TokenTrie.of([b"a" * length for length in lengths for _ in range(17)] + [b"b", b"b" + b"a" * 50])
    pattern = "(?:a{0,70}b){0,3}"
    automaton = Automaton.from_regex(pattern, tokens, dense_share=0.0)
    same(automaton, Automaton.from_regex(pattern, tokens, dense_share=1.0))
    assert len(automaton.rows.mask_MW) < automaton.num_states


# The real vocabulary, against xgrammar.


@cache
def tokens_131k() -> TokenTrie:
    try:
        return TokenTrie.of(real_vocabulary())
    except MissingExtraError as error:
        pytest.skip(str(error))


@cache
def xgrammar_compiler():
    tokens_131k()
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [entry or b"" for entry in real_vocabulary()]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[2])
    return xgrammar, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


REAL_PATTERNS = [
    r"-?[0-9]+(\.[0-9]+)?",
    r'"(true|false|NA)"',
    r"a|ab|abc",
    r"[a-z]{1,8}( [a-z]{1,8}){0,3}",
    r'[^"]{0,12}"',
    r"(é|日本|a)+",
    r'"([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt]){0,20}"',
    r"[\x20-\x7e]{5,20}",
    r"(foo|foobar)*(baz)?",
    r'\{"a": ?[0-9]{1,3}(, ?"b": ?(true|false))?\}',
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "[\u0430-\u044f]{3,9}",
    r"(the |of |a )*(end)?",
    r"[^\n]*\n",
]


@pytest.mark.parametrize("pattern", REAL_PATTERNS)
def test_legal_tokens_and_ends_equal_those_of_xgrammar(pattern: str) -> None:
    xgrammar, compiler = xgrammar_compiler()
    automaton = Automaton.from_regex(pattern, tokens_131k())
    grammar = compiler.compile_regex(pattern)
    mask = xgrammar.allocate_token_bitmask(1, len(tokens_131k()))
    rng = np.random.default_rng(len(pattern))
    for _ in range(6):
        matcher, state = xgrammar.GrammarMatcher(grammar), 0
        for _ in range(12):
            matcher.fill_next_token_bitmask(mask)
            ours = automaton.masks(np.array([state]))[0]
            ours[0] |= 4 * automaton.accepts(state)  # the stop token
            assert np.array_equal(mask.numpy()[0], ours)
            allowed = automaton.allowed(state)
            if not len(allowed):
                assert automaton.is_final(state)
                break
            # Short tokens as often as long ones, so that walks stay inside bounded strings for a while.
            token = int(min(rng.choice(allowed, 3), key=lambda one: len(tokens_131k().bytes_of(int(one)))))
            assert matcher.accept_token(token)
            state = automaton.next(state, token)


def test_forced_text_is_at_least_that_of_xgrammar() -> None:
    xgrammar, compiler = xgrammar_compiler()
    pattern = r'\{"summary": "[a-z]{2}", "kind": "(one|once)"\}'
    automaton, matcher = Automaton.from_regex(pattern, tokens_131k()), xgrammar.GrammarMatcher(compiler.compile_regex(pattern))
    state = 0
    for piece in (b'{"summary": "', b"ab", b'", "kind": "on', b'e"}'):
        assert piece.startswith(matcher.find_jump_forward_string().encode())
        assert automaton.forced_bytes(state) == (b"" if piece == b"ab" or piece[:1] == b"e" else piece)
        for byte in piece:
            state = automaton.next(state, real_vocabulary().index(bytes([byte])))
            assert matcher.accept_token(real_vocabulary().index(bytes([byte])))
    assert automaton.is_final(state)


def test_a_bounded_string_shares_its_masks() -> None:
    automaton = Automaton.from_regex(r'"[^"\\\x00-\x1f]{0,200}"', tokens_131k())
    assert (automaton.rows.mask_S >= 0).sum() > 190
    assert len(automaton.rows.mask_MW) < 90
    assert sum(automaton.parts.values()) == automaton.nbytes < 5_000_000


# Look-ups.


def test_look_ups_of_many_states_are_those_of_each() -> None:
    automaton = Automaton.from_regex("(?:ab|b)*c?", LETTERS, dense_share=0.3)
    states = np.array([0, -1, *range(automaton.num_states), 0], np.int32)
    pointer, codes = automaton.legal(states)
    for place, state in enumerate(states):
        expected = [] if state < 0 else automaton.allowed(int(state)).tolist()
        assert codes[pointer[place] : pointer[place + 1]].tolist() == expected
        bits = np.unpackbits(automaton.masks(states[place : place + 1]).view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == expected
        for token in range(len(LETTERS)):
            after = int(automaton.step(np.array([state]), np.array([token]))[0])
            assert (after >= 0) == (token in expected)
    assert automaton.num_allowed(states).tolist() == np.diff(pointer).tolist()
    assert codes.dtype == np.int32
    assert pointer.dtype == np.int64
    assert automaton.masks(states).dtype == np.int32


def test_no_states_are_looked_up_in_no_time() -> None:
    automaton = Automaton.from_choices(["a"], LETTERS)
    nothing = np.empty(0, np.int64)
    assert automaton.legal(nothing)[0].tolist() == [0]
    assert len(automaton.step(nothing, nothing)) == 0
    assert automaton.masks(nothing).shape == (0, 1)


def test_the_empty_text_alone_is_a_language() -> None:
    automaton = Automaton.from_choices([""], LETTERS)
    assert automaton.is_final(0)
    assert [] in automaton
    assert [1] not in automaton
    same(automaton, Automaton.from_regex("", LETTERS))


def test_tokens_with_equal_bytes_are_legal_together() -> None:
    automaton = Automaton.from_choices(["ab"], LETTERS)
    assert automaton.allowed(0).tolist() == [1, 4, 9]
    assert automaton.next(0, 4) == automaton.next(0, 9)
    assert TokenTrie.of(LETTERS).repeated == 1


def test_tokens_without_bytes_are_never_legal() -> None:
    automaton = Automaton.from_regex(".*", LETTERS, dense_share=0.0)
    assert 0 not in automaton.allowed(0)
    assert TokenTrie.of(LETTERS).num_tokens == len(LETTERS) - 1


# Forced chains.


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12))
def test_a_chain_says_what_single_steps_would(sequences: list[list[int]]) -> None:
    automaton = Automaton.from_sequences(sequences, 4)
    chains = automaton.chains
    assert chains is not None
    pointer, tokens, ends = chains.follow(np.array([-1, *range(automaton.num_states)]))
    assert (pointer[1], ends[0]) == (0, -1)
    for state in range(automaton.num_states):
        at = state
        for token in tokens[pointer[state + 1] : pointer[state + 2]]:
            assert not automaton.accepts(at)
            assert automaton.allowed(at).tolist() == [token]
            at = automaton.next(at, int(token))
        assert at == ends[state + 1]
        assert automaton.accepts(at) or len(automaton.allowed(at)) != 1


def test_chains_are_found_by_default_for_choices_and_sequences_only() -> None:
    assert Automaton.from_choices(["abc"], [b"a", b"b", b"c"]).chains is not None
    assert Automaton.from_choices(["abc"], [b"a", b"b", b"c"], compress=False).chains is None
    plain = Automaton.from_regex('"(?:true|false)"', [bytes([byte]) for byte in range(128)])
    assert plain.chains is None
    chains = plain.compress().chains
    assert chains is not None
    assert chains.follow(np.array([0]))[1].tolist() == [ord('"')]
    assert chains.num_forced == plain.num_states - 2  # all but the choice and the end
    assert plain.compress().nbytes == plain.nbytes + 16 * plain.num_states
    masked = Automaton.from_regex("abc", [b"a", b"b", b"c"], compress=True, dense_share=0.0)
    assert masked.chains is not None
    assert masked.chains.follow(np.array([0]))[1].tolist() == [0, 1, 2]


# Files.


def fixture_automaton() -> Automaton:
    """What the committed file of format version 1 holds: rows, masks, a byte automaton, chains."""
    return Automaton.from_regex("(?:a{0,9}b|é)*c{3}", LETTERS, dense_share=0.5, compress=True)


def test_format_version_1_loads_forever() -> None:
    loaded, expected = Automaton.load(FIXTURE), fixture_automaton()
    same(loaded, expected)
    assert loaded.version == expected.version
    assert loaded.chains is not None


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_load_gives_back_what_was_saved(tmp_path: Path, share: float) -> None:
    made = [
        Automaton.from_regex("(?:ab|é)*c?", LETTERS, dense_share=share),
        Automaton.from_choices(["ab", "", "abc"], LETTERS, dense_share=share),
        Automaton.from_sequences([[1, 2], [], [3]], 9),
    ]
    for automaton in made:
        automaton.save(tmp_path / "x")
        loaded = Automaton.load(tmp_path / "x")
        same(automaton, loaded)
        assert loaded.version == automaton.version
        assert loaded.nbytes == automaton.nbytes
        assert loaded.forced_bytes(0) == automaton.forced_bytes(0)
        assert (loaded.chains is None) == (automaton.chains is None)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    Trie.build([[0]], [1]).save(tmp_path / "trie")
    fixture_automaton().save(tmp_path / "automaton")
    with pytest.raises(IndexFileError, match="not a file of kind"):
        Automaton.load(tmp_path / "trie")
    with pytest.raises(IndexFileError, match="not a pleach index"):
        Trie.load(tmp_path / "automaton")
    for content in (b"", b"abc", bytes(64), b"\xff" * 64, (2).to_bytes(8, "little") + b"{}", b"\x05\0\0\0\0\0\0\0[[[[["):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(IndexFileError, match="not a file of kind"):
            Automaton.load(tmp_path / "x")
    with pytest.raises(IndexFileError, match="cannot open"):
        Automaton.load(tmp_path / "none")
    newer = FIXTURE.read_bytes().replace(rb"\"format_version\": 1", rb"\"format_version\": 9")
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(IndexFileError, match="upgrade pleach"):
        Automaton.load(tmp_path / "newer")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(FIXTURE.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    keep = data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) // 2, 100]))
    (tmp_path / "x").write_bytes(bytes(raw[:keep]))
    try:
        loaded = Automaton.load(tmp_path / "x")
    except IndexFileError:
        return
    same(loaded, fixture_automaton())  # the change was in white space, or set a byte back


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_arrays_that_point_outside_are_refused_though_the_digest_is_right(tmp_path: Path, data: st.DataObject) -> None:
    from pleach.index.files import read, write

    header, tensors = read(FIXTURE, "pleach-automaton", 1)
    name = data.draw(st.sampled_from(sorted(tensors)))
    array = tensors[name].copy()
    change = data.draw(st.sampled_from(["number", "shorter", "wider", "gone"]))
    if change == "number" and array.size:
        place = data.draw(st.integers(0, array.size - 1))
        array.reshape(-1)[place] = data.draw(
            st.sampled_from([0, 1, 2, 3, 100, np.iinfo(array.dtype).max, np.iinfo(array.dtype).min])
        )
    elif change == "shorter":
        array = array[:-1]
    elif change == "wider":
        array = array.astype(np.int64 if array.dtype != np.int64 else np.int32)
    changed = {**tensors, name: array}
    if change == "gone":
        del changed[name]
    write(tmp_path / "x", "pleach-automaton", header, changed)
    try:
        loaded = Automaton.load(tmp_path / "x")
    except IndexFileError:
        return
    states = np.arange(loaded.num_states)  # another automaton, but one that can be walked without harm
    pointer, codes = loaded.legal(states)
    loaded.masks(states)
    loaded.step(np.repeat(states, np.diff(pointer)), codes)
    loaded.forced_bytes(0)


# Bad input.


def refused(match: str, make, *arguments, **keywords) -> None:
    with pytest.raises(AutomatonError, match=match):
        make(*arguments, **keywords)


def test_vocabularies_that_are_none_are_refused() -> None:
    for vocabulary, match in (
        ([], "expected 1 token"),
        ([None], "expected 1 token"),
        ([b"a", b""], "token 1 .* at least one"),
        ([b"a", "b"], "token 1 .* expected its bytes"),
        (b"abc", "one string"),
        ("abc", "one string"),
        ([b"a", 3], "token 1"),
    ):
        refused(match, Automaton.from_regex, "a", vocabulary)
        refused(match, Automaton.from_choices, ["a"], vocabulary)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("(a", "leaves 1 of its brackets open"),
        ("a)|(?:b", "closes a bracket at 1"),
        ("[a", "leaves the class open"),
        ("a(?=b)", "refuses the pattern"),
        (r"(a)\1", "refuses the pattern"),
        ("*", "refuses the pattern"),
        ("a{2", "refuses the pattern"),
        ("\\", "refuses the pattern"),
        (r"\bab", "looks back"),
        (r"a|^b", "looks back"),
        (r"\Aa", "looks back"),
        ("[b&&c]", "refuses the pattern|matches nothing"),
        ("a$b", "refuses the pattern|matches nothing"),
        ("a{1000000000}", "unrolls to"),
        ("(?:(?:a{1000}){1000}){1000}", "unrolls to"),
        (3, "expected a string"),
        (b"a", "expected a string"),
        (None, "expected a string"),
    ],
)
def test_patterns_that_are_none_are_refused(pattern: str, match: str) -> None:
    refused(match, Automaton.from_regex, pattern, LETTERS)


@settings(max_examples=200)
@given(st.text("ab()[]{}|*+?\\^$.-,0159é&~:<>P\n", max_size=12))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        automaton = Automaton.from_regex(pattern, [b"a", b"b", b"0"], max_states=2000)
    except PleachError:
        return
    assert (distances(automaton) >= 0).all()


def test_an_empty_allowed_set_is_refused() -> None:
    refused("nothing that the pattern matches can be written", Automaton.from_regex, "[xyz]+", LETTERS)
    refused("nothing that the schema matches can be written", Automaton.from_json_schema, {"type": "null"}, LETTERS)
    refused("choice 1, 'xyz', cannot be written", Automaton.from_choices, ["a", "xyz"], LETTERS)
    refused("choice 0, 'b', cannot be written", Automaton.from_choices, ["b"], [b"a", b"ab"])
    assert Automaton.from_choices(["aab", "ab"], [b"a", b"ab"]).num_states > 1


def test_choices_and_sequences_that_are_none_are_refused() -> None:
    refused("expected a list", Automaton.from_choices, [], LETTERS)
    refused("expected a list", Automaton.from_choices, "ab", LETTERS)
    refused("choice 1 is 3", Automaton.from_choices, ["a", 3], LETTERS)
    refused("from_sequences", Automaton.from_choices, [[1, 2]], LETTERS)
    refused("not Unicode", Automaton.from_choices, ["\ud800"], LETTERS)
    refused("no sequences", Automaton.from_sequences, [], 5)
    with pytest.raises(CodesError):
        Automaton.from_sequences([[5]], 5)
    with pytest.raises(CodesError):
        Automaton.from_sequences([[0] * 65], 5)
    with pytest.raises(ArgumentError):
        Automaton.from_sequences([[0]], 0)


def test_what_is_larger_than_its_budget_is_refused() -> None:
    refused("expected at most max_states=5", Automaton.from_regex, "a{1,5}b", LETTERS, max_states=5)
    refused("expected at most max_states=3", Automaton.from_choices, ["abcabc"], LETTERS, max_states=3)
    refused("expected at most max_states=2", Automaton.from_sequences, [[1, 2, 3]], 9, max_states=2)
    letters = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in itertools.product(b"abcdefgh", repeat=2)] * 30
    for share in (0.0, 1.0):
        for budget in (1, 500, 4000):
            refused("bytes", Automaton.from_regex, "[a-z]{0,40}", letters, max_bytes=budget, dense_share=share)
    assert Automaton.from_regex("[a-z]{0,40}", letters, dense_share=0.0).nbytes < 30_000
    refused("expected at most max_bytes", Automaton.from_sequences, [[1, 2, 3]], 9, max_bytes=10)


@pytest.mark.parametrize("limits", [{"max_states": 0}, {"max_bytes": 0}, {"dense_share": -0.1}, {"dense_share": float("nan")}])
def test_limits_out_of_range_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Automaton.from_choices(["a"], LETTERS, **limits)


def test_states_and_tokens_out_of_range_are_refused() -> None:
    automaton = Automaton.from_choices(["ab"], LETTERS)
    for state in (-2, automaton.num_states, 2**40):
        refused("is not in the automaton", automaton.allowed, state)
        refused("is not in the automaton", automaton.accepts, state)
        refused("is not in the automaton", automaton.masks, np.array([0, state]))
        refused("is not in the automaton", automaton.forced_bytes, state)
    for token in (-1, len(LETTERS), 2**40):
        refused("is not in the vocabulary", automaton.next, 0, token)
        refused("is not in the vocabulary", TokenTrie.of(LETTERS).bytes_of, token)
        assert [token] not in automaton
    refused("is not legal in state 0", automaton.next, 0, 2)
    refused("one for each state", automaton.step, np.array([0]), np.array([1, 2]))
    refused("expected integers", automaton.step, np.array([0]), np.array([1.0]))
    refused("expected a list of integers", automaton.legal, np.array([0.0]))
    refused("expected a list of integers", automaton.legal, np.array([[0]]))


def test_without_outlines_core_patterns_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(MissingExtraError, match=r"pleach\[automata\]"):
        Automaton.from_regex("a", LETTERS)
    assert [1] in Automaton.from_choices(["a"], LETTERS)
