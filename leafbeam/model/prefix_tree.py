"""A set of token sequences that finds the longest member which begins another sequence."""

from dataclasses import dataclass, field

import numpy as np

_TOKEN = 8  # bytes of an int64


@dataclass(slots=True)
class _Node:
    """The members that begin with the labels of the path to here. children: by their label's first token."""

    label: bytes
    is_member: bool = False
    children: dict[bytes, "_Node"] = field(default_factory=dict[bytes, "_Node"])


class PrefixTree:
    """A radix tree over sequences of int64 tokens, as bytes.

    A look-up costs one comparison for each branch along the sequence, however many members there are, of whatever lengths.

    >>> tree = PrefixTree()
    >>> tree.add(np.array([1, 7, 5]).tobytes())
    >>> tree.longest_prefix(np.array([1, 7, 5, 4]).tobytes()), tree.longest_prefix(np.array([1, 7, 4]).tobytes())
    (3, 0)
    """

    def __init__(self) -> None:
        self._root = _Node(b"")

    def longest_prefix(self, key: bytes) -> int:
        """Return the number of tokens of the longest member that begins `key`, 0 if there is none."""
        node, end, longest = self._root, 0, 0
        while child := node.children.get(key[end : end + _TOKEN]):
            if not key.startswith(child.label, end):
                break
            node, end = child, end + len(child.label)
            if node.is_member:
                longest = end // _TOKEN
        return longest

    def add(self, key: bytes) -> None:
        """Add a sequence; a member stays one."""
        node, end = self._root, 0
        while end < len(key):
            first = key[end : end + _TOKEN]
            child = node.children.get(first)
            if child is None:
                child = node.children[first] = _Node(key[end:])
            elif not key.startswith(child.label, end):
                child = node.children[first] = _split(child, _num_common(child.label, key[end:]))
            node, end = child, end + len(child.label)
        node.is_member = True

    def remove(self, key: bytes) -> None:
        """Remove a member, and the nodes that only it needed."""
        node, end, path = self._root, 0, list[_Node]()
        while end < len(key):
            path.append(node)
            node = node.children[key[end : end + _TOKEN]]
            end += len(node.label)
        node.is_member = False
        if node.children and path:
            _join(node)
        elif path:
            del path[-1].children[node.label[:_TOKEN]]
            if len(path) > 1:
                _join(path[-1])


def _split(node: _Node, size: int) -> _Node:
    """Return a new parent of `node` that takes the first `size` bytes of its label."""
    parent = _Node(node.label[:size], children={node.label[size : size + _TOKEN]: node})
    node.label = node.label[size:]
    return parent


def _join(node: _Node) -> None:
    """Merge a node that is not a member with its only child."""
    if node.is_member or len(node.children) != 1:
        return
    (child,) = node.children.values()
    node.label, node.is_member, node.children = node.label + child.label, child.is_member, child.children


def _num_common(left: bytes, right: bytes) -> int:
    """Return the number of bytes of the tokens that both begin with; the two are not prefixes of each other or `right` ends."""
    size = min(len(left), len(right))
    differs = np.frombuffer(left[:size], np.int64) != np.frombuffer(right[:size], np.int64)
    return _TOKEN * int(differs.argmax()) if differs.any() else size
