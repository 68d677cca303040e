"""Machine code: made from typed Python by child processes, kept in a folder that is checked, loaded by LLVM.

The room knows nothing of what the code does. Whoever has some compiled says under which name and key it is kept.
"""
