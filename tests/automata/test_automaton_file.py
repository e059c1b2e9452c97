"""Files of automata: what was saved comes back, and what is damaged is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.automata import Automaton
from leafbeam.errors import IndexFileError
from tests.automata.languages import LETTERS, same

FIXTURES = Path(__file__).parent.parent / "fixtures"
FIXTURE = FIXTURES / "automaton-v1.pleach"


def fixture_automaton() -> Automaton:
    """What the committed file of format version 1 holds: rows, masks, a byte automaton, chains."""
    return Automaton.from_regex("(?:a{0,9}b|é)*c{3}", LETTERS, dense_share=0.5, compress=True)


def test_format_version_1_loads_forever() -> None:
    loaded, expected = Automaton.load(FIXTURE), fixture_automaton()
    same(loaded, expected)
    assert loaded.version == expected.version
    assert loaded.chains is not None


# Schemas whose networks are in files of old versions: without counted characters, and with them.
OLD_NETWORKS = {
    3: {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "n": {"type": "integer", "minimum": 0, "maximum": 300},
    },
    4: {
        "code": {"type": "string", "pattern": "^[a-z]+-[0-9]+$", "maxLength": 60},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 3},
    },
}


@pytest.mark.parametrize(("version", "properties"), OLD_NETWORKS.items())
def test_networks_of_old_versions_load_forever(version: int, properties: dict[str, object]) -> None:
    first = next(iter(properties))
    schema = {"type": "object", "properties": properties, "required": [first], "additionalProperties": False}
    tokens = [*(bytes([byte]) for byte in range(256)), f'"{first}"'.encode(), b'": ', b'"tags"', b"ab", b"}}"]
    loaded = Automaton.load(FIXTURES / f"automaton-v{version}.leafbeam")
    assert loaded.is_lazy
    same(loaded.filled(), Automaton.from_json_schema(schema, tokens).filled())


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


def test_a_file_holds_the_notes_of_a_schema(tmp_path: Path) -> None:
    from leafbeam.automata.automaton_file import KIND
    from leafbeam.index.tensor_file import read, write

    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 1, "x-order": 1}
    for share in (0.0, 1.0):
        automaton = Automaton.from_json_schema(schema, [bytes([byte]) for byte in range(128)], dense_share=share)
        assert [note.as_json() for note in automaton.notes] == [{"treatment": "ignored", "keyword": "x-order", "pointer": "#"}]
        automaton.save(tmp_path / "x")
        assert Automaton.load(tmp_path / "x").notes == automaton.notes
    header, tensors = read(tmp_path / "x", KIND)
    for notes in (1, [1], [{"treatment": "ignored"}], [{"treatment": "kept", "keyword": "a", "pointer": "#"}]):
        write(tmp_path / "x", KIND, {**header, "notes": notes}, tensors)
        with pytest.raises(IndexFileError, match="damaged"):
            Automaton.load(tmp_path / "x")


def test_other_files_are_refused(tmp_path: Path) -> None:
    Trie.build([[0]], [1]).save(tmp_path / "trie")
    fixture_automaton().save(tmp_path / "automaton")
    with pytest.raises(IndexFileError, match="not a leafbeam automaton"):
        Automaton.load(tmp_path / "trie")
    with pytest.raises(IndexFileError, match="not a leafbeam index"):
        Trie.load(tmp_path / "automaton")
    for content in (b"", b"abc", bytes(64), b"\xff" * 64, (2).to_bytes(8, "little") + b"{}", b"\x05\0\0\0\0\0\0\0[[[[["):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(IndexFileError, match="not a leafbeam automaton"):
            Automaton.load(tmp_path / "x")
    with pytest.raises(IndexFileError, match="cannot open"):
        Automaton.load(tmp_path / "none")
    newer = FIXTURE.read_bytes().replace(rb"\"format_version\": 1", rb"\"format_version\": 9")
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(IndexFileError, match="upgrade leafbeam"):
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
    from leafbeam.automata.automaton_file import KIND
    from leafbeam.index.tensor_file import read, write

    header, tensors = read(FIXTURE, KIND)
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
    write(tmp_path / "x", KIND, header, changed)
    try:
        loaded = Automaton.load(tmp_path / "x")
    except IndexFileError:
        return
    states = np.arange(loaded.num_states)  # another automaton, but one that can be walked without harm
    pointer, codes = loaded.legal(states)
    loaded.masks(states)
    loaded.step(np.repeat(states, np.diff(pointer)), codes)
    loaded.forced_bytes(0)


def test_offsets_whose_differences_overflow_are_refused(tmp_path: Path) -> None:
    from leafbeam.automata.automaton_file import KIND
    from leafbeam.index.tensor_file import read, write

    header, tensors = read(FIXTURE, KIND)
    for name in ("dfa.first", "row_ptr", "token.start"):
        array = tensors[name].copy()
        limits = np.iinfo(array.dtype)
        array[1:4] = limits.max, limits.min, -1  # differences of at least 0, modulo 2^32 or 2^64
        write(tmp_path / "x", KIND, header, {**tensors, name: array})
        with pytest.raises(IndexFileError, match="does not ascend"):
            Automaton.load(tmp_path / "x")
