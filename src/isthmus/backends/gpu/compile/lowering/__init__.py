"""The lowering of each operation to kernel launches: one table per family, merged by
`isthmus.backends.gpu.compile.lower`.
"""
