"""Kernels on several threads: every row once, with the bits that one thread gives."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from leafbeam import jit
from leafbeam.model.cpu import kernels, pointwise
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops import openmp
from tests.openmp_threads import has_ended, needs_openmp, openmp_threads


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 200])
def test_threads_do_not_change_a_bit(rows: int, threads: int) -> None:
    rng = np.random.default_rng(rows)
    x_ND, weight_D = rng.normal(size=(rows + 1, 96)).astype(np.float32), rng.normal(size=96).astype(np.float32)
    one, many = (np.full((rows + 1, 96), np.nan, np.float32) for _ in range(2))
    pointwise.norm(x_ND, rows, weight_D, weight_D[:0], 1e-6, one, 1)
    pointwise.norm(x_ND, rows, weight_D, weight_D[:0], 1e-6, many, threads)
    np.testing.assert_array_equal(many, one)
    assert np.isfinite(many[:rows]).all()
    assert np.isnan(many[rows]).all()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_softmax_weights(threads: int) -> None:
    scores = np.random.default_rng(0).uniform(-20, 20, 3 * 5 * 40).astype(np.float32)
    results: list[tuple[Any, ...]] = []
    for count in (1, threads):
        flat, top, total = scores.copy(), *np.full((2, 3, 6), np.nan, np.float32)
        kernels.softmax_weights(
            flat, kernels.ScoreTile(3, 5, 40, 10, 1, 1, 0.0, 0), np.arange(6), np.float32(np.inf), top, total, 1, count
        )
        results.append((flat, top, total))
    for one, many in zip(*results, strict=True):
        np.testing.assert_array_equal(one, many)


def test_several_threads_of_python_fork_at_once() -> None:
    rng = np.random.default_rng(1)
    weight_D, inputs = np.ones(512, np.float32), rng.normal(size=(4, 64, 512)).astype(np.float32)
    expected, outputs = np.empty_like(inputs), np.empty_like(inputs)
    for x_ND, out_ND in zip(inputs, expected, strict=True):
        pointwise.norm(x_ND, 64, weight_D, weight_D[:0], 1e-6, out_ND, 1)

    def run(number: int) -> None:
        for _ in range(50):
            pointwise.norm(inputs[number], 64, weight_D, weight_D[:0], 1e-6, outputs[number], 2)

    others = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    np.testing.assert_array_equal(outputs, expected)


def test_few_values_are_for_one_thread() -> None:
    with torch_threads(2):
        assert openmp.num_threads(100) == 1
        assert openmp.num_threads(1 << 20) in (1, 2)  # 1 where torch has another library
    with torch_threads(1):
        assert openmp.num_threads(1 << 20) == 1


def test_without_the_library_kernels_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise OSError

    symbols: dict[str, int] = {}
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(jit.binding, "add_symbol", symbols.__setitem__)
    assert not openmp.name_functions()
    assert len(symbols) == 3
    assert all(symbols.values())
    monkeypatch.setattr(openmp, "_IS_AVAILABLE", False)
    with torch_threads(2):
        assert openmp.num_threads(1 << 20) == 1


def test_without_the_library_there_are_no_threads_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_IS_AVAILABLE", False)
    assert not openmp.end_idle_threads()


linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")


def cores_of(threads: int) -> list[set[int]]:
    return [os.sched_getaffinity(one) for one in openmp_threads(threads)]


@needs_openmp
def test_idle_threads_end_and_new_ones_start() -> None:
    first = openmp_threads(2)
    assert openmp.end_idle_threads()
    assert has_ended(first[1])
    assert openmp_threads(2)[0] == first[0]
    assert openmp.end_idle_threads()
    assert openmp.end_idle_threads()  # with none left


@needs_openmp
def test_threads_that_are_spread_share_no_core() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core")
    with openmp.Spread(2) as is_spread:
        assert is_spread
        first, second = cores_of(2)
        assert not first & second
        assert first | second == before
        with openmp.Spread(2) as again:  # of the cores that this thread still has
            assert again == (len(first) > 1)
    assert cores_of(2) == [before, before]


@linux
@pytest.mark.parametrize("threads", [1, 4096])
def test_threads_keep_their_cores_where_they_are_too_few(threads: int) -> None:
    before = os.sched_getaffinity(0)
    with openmp.Spread(threads) as is_spread:
        assert not is_spread
        assert os.sched_getaffinity(0) == before


@needs_openmp
def test_a_spread_is_entered_again_after_its_threads_ended() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core")
    spread = openmp.Spread(2)
    for ends in (False, False, True, False):
        if ends:
            openmp.end_idle_threads()
        with spread as is_spread:
            assert is_spread
            first, second = cores_of(2)
            assert not first & second
            assert first | second == before
        assert cores_of(2) == [before, before]


@linux
def test_the_number_of_a_thread_that_ended_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, _: changed.append(thread))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert not openmp._set_cores(other.pid, [0])
        other.communicate(b"\n")
    assert not changed


@linux
def test_a_system_that_forbids_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(thread: int, cores: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with openmp.Spread(2) as is_spread:
        assert not is_spread
