"""`fork`: running a numba kernel's parts on the threads of torch's products.

After a product torch's OpenMP threads wait for work in a busy loop for a while, so a second pool would have to wait for their
cores. `fork` gives the work to these threads: it calls GOMP_parallel, the function that gcc compiles a parallel region to, in
the library that torch has loaded. Where torch came with another one, kernels run on one thread.
"""

# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false
import ctypes
import os
from collections.abc import Sequence

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from leafbeam import jit

__all__ = ["Spread", "end_idle_threads", "fork", "is_available", "name_functions", "num_threads"]

_MIN_VALUES = 1 << 15  # of a kernel's rows: with fewer, one thread is as fast
_LIBRARY, _MODE = "libgomp.so.1", os.RTLD_NOLOAD | os.RTLD_NOW
_SYMBOLS = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
_SOFT_PAUSE = 1  # omp_pause_soft


def name_functions() -> bool:
    """Return whether torch has loaded gcc's library, and let kernels call these functions of it by name."""
    return jit.name_functions(_LIBRARY, _SYMBOLS, _MODE)


_IS_AVAILABLE = name_functions()
_HAS_IDS = jit.name_functions("libc.so.6", ["gettid"])


def is_available() -> bool:
    """Return whether `fork` may run on more than one thread."""
    return _IS_AVAILABLE


def num_threads(values: int = _MIN_VALUES) -> int:
    """Return the number of threads of `fork` for a kernel whose rows have so many values: torch's number, or one."""
    return torch.get_num_threads() if values >= _MIN_VALUES and _IS_AVAILABLE else 1


def end_idle_threads() -> bool:
    """End the threads that wait for the calling thread's next product or kernel; return whether they were ended.

    Call it before other threads multiply: if a process has more OpenMP threads than cores, gcc's library puts each to sleep
    almost as soon as it waits, and a prompt of 1,025 tokens took a large model 12 s on two cores in place of 8. Where torch
    came with another library, nothing ends. The caller's next product starts new threads.
    """
    if not _IS_AVAILABLE:
        return False
    pause = getattr(ctypes.CDLL(_LIBRARY, mode=_MODE), "omp_pause_resource_all", None)  # since gcc 9
    return pause is not None and pause(_SOFT_PAUSE) == 0


@intrinsic
def fork(typing_context, body, threads, count, arguments):
    """body(begin, end, *arguments) for at most `threads` parts of range(count), at once

    body: an njit function that raises nothing and returns None. arguments: a tuple.
    """
    signature = body.get_call_type(typing_context, (types.intp, types.intp, *arguments.types), {})

    def codegen(context, builder, _, values):
        word, void = ir.IntType(32), ir.VoidType()
        compiled = body.dispatcher.get_compile_result(signature)
        context.active_code_library.add_linking_library(compiled.library)
        module, pointer = builder.module, cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, values[2:]))
        region_type = ir.FunctionType(void, [cgutils.voidptr_t])

        def call_body(builder, part, parts, pointer):
            size, arguments_ = cgutils.unpack_tuple(builder, builder.load(pointer), 2)
            unpacked = cgutils.unpack_tuple(builder, arguments_, len(arguments))
            next_part = builder.add(part, ir.Constant(part.type, 1))
            bounds = [builder.sdiv(builder.mul(size, number), parts) for number in (part, next_part)]
            context.call_internal_no_propagate(builder, compiled.fndesc, signature, [*bounds, *unpacked])

        region = ir.Function(module, region_type, module.get_unique_name("leafbeam_region"))
        region.linkage = "internal"
        inside = ir.IRBuilder(region.append_basic_block())
        counts = [
            inside.sext(
                inside.call(cgutils.get_or_insert_function(module, ir.FunctionType(word, []), f"leafbeam_{name}"), []),
                ir.IntType(64),
            )
            for name in _SYMBOLS[1:]
        ]
        call_body(inside, *counts, inside.bitcast(region.args[0], pointer.type))
        inside.ret_void()

        one = ir.Constant(ir.IntType(64), 1)
        with builder.if_else(builder.icmp_signed(">", values[1], one)) as (many, single):
            with many:
                parallel_type = ir.FunctionType(void, [region_type.as_pointer(), cgutils.voidptr_t, word, word])
                parallel = cgutils.get_or_insert_function(module, parallel_type, f"leafbeam_{_SYMBOLS[0]}")
                count, flags = builder.trunc(values[1], word), word(0)
                builder.call(parallel, [region, builder.bitcast(pointer, cgutils.voidptr_t), count, flags])
            with single:
                call_body(builder, ir.Constant(ir.IntType(64), 0), one, pointer)
        return context.get_dummy_value()

    return types.void(body, types.intp, types.intp, arguments), codegen


class Spread:
    """A context in which the calling thread and those that its kernels run on have cores of their own, where possible.

    Of n threads, thread i keeps every n-th core of the caller's. Otherwise Linux may wake a thread that has slept for some
    milliseconds on the core where the caller waits for it in a busy loop, and both stay there for a while. Threads that start
    inside share the caller's cores. Nothing happens if there are fewer cores than threads, or on other systems than Linux.

    Enter it again for each batch of the same calling thread: it then knows the others, and wakes them on their cores.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._ids: tuple[int, ...] = ()  # the caller is the first
        self._cores: Sequence[int] = ()

    def __enter__(self) -> bool:
        """Return whether the threads got cores of their own."""
        can_bind = _IS_AVAILABLE and _HAS_IDS
        cores = sorted(os.sched_getaffinity(0)) if can_bind and self._threads > 1 else ()
        self._cores = cores if len(cores) >= self._threads else ()
        if not self._cores:
            return False
        known = self._ids
        are_apart = self._bind(known)
        self._ids = self._running()
        if self._ids == known:
            return are_apart
        self._free(known)
        return self._bind(self._ids)

    def __exit__(self, *_: object) -> None:
        if self._cores:
            self._free(self._ids)

    def _free(self, ids: Sequence[int]) -> None:
        for one in ids:
            _set_cores(one, self._cores)

    def _bind(self, ids: Sequence[int]) -> bool:
        are_bound = [_set_cores(one, self._cores[n :: self._threads]) for n, one in enumerate(ids)]
        return all(are_bound)

    def _running(self) -> tuple[int, ...]:
        ids_N = np.zeros(self._threads, np.int64)
        _write_ids(ids_N, self._threads)
        return tuple(dict.fromkeys(ids_N.tolist()))


def _set_cores(thread: int, cores: Sequence[int]) -> bool:
    """Set the cores of a thread of this process; return False if that is not allowed here, or the thread has ended."""
    if not os.path.exists(f"/proc/self/task/{thread}"):
        return False
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True


@intrinsic
def _thread_id(typing_context):
    """Return the number by which Linux knows this thread."""

    def codegen(context, builder, signature, arguments):
        gettid = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "leafbeam_gettid")
        return builder.sext(builder.call(gettid, []), ir.IntType(64))

    return types.int64(), codegen


@jit.njit(cache=True, nogil=True, _nrt=False)
def _write_ids(ids_N: object, threads: int) -> None:
    """ids[n] = the thread that runs part n"""
    fork(_write_ids_of, threads, threads, (ids_N,))


@jit.njit(nogil=True, _nrt=False)
def _write_ids_of(begin, end, ids_N):
    for n in range(begin, end):
        ids_N[n] = _thread_id()
