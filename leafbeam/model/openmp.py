"""`fork`: running a numba kernel's parts on the threads of torch's products.

After a product torch's OpenMP threads wait for work in a busy loop for a while, so a second pool would have to wait for their
cores. `fork` gives the work to these threads: it calls GOMP_parallel, the function that gcc compiles a parallel region to, in
the library that torch has loaded. Where torch came with another one, kernels run on one thread.
"""

# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false
import os

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from leafbeam import jit

__all__ = ["fork", "name_functions", "num_threads"]

_MIN_VALUES = 1 << 15  # of a kernel's rows: with fewer, one thread is as fast
_SYMBOLS = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"


def name_functions() -> bool:
    """Whether torch has loaded gcc's library."""
    mode = getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_NOW", 0)  # Windows has neither, nor the library
    return jit.name_functions("libgomp.so.1", _SYMBOLS, mode)


_IS_AVAILABLE = name_functions()


def num_threads(values: int = _MIN_VALUES) -> int:
    """How many threads `fork` runs on, for so many values in a kernel's rows: torch's number, or one."""
    return torch.get_num_threads() if values >= _MIN_VALUES and _IS_AVAILABLE else 1


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
