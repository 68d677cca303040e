"""The kernels: each implements one kind of instruction. Only the compiler imports these modules (they need numba).

A kernel is a function ``(p, b, tid, nt)``: the address of the instruction's words, the address of the base table, this
thread's number, and the number of threads. It is named ``module:function`` or ``module:function.variant``.
"""
