"""The kernels: each implements one kind of instruction. Only the compiler imports these modules (they need numba).

A kernel is a function of the words of its instruction, of this thread's number and of the number of threads (see
`base.kernel`). It is named ``module:function`` or ``module:function.variant``.
"""
