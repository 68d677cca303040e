"""Declarations of QNN's C interface: functions, structures, numbers, for code that implements or calls QNN.

`declarations` has the functions, ``headers.txt`` the structures and numbers of QNN's headers, in the notation that
`notation` reads and prints as C. Of their structures, `types` has tensors and operations, `objects` configurations and
descriptors, `system` those of the system library and of model libraries; `tables` has the tables of functions.
`client` reads and writes the client's memory, `tensors` its tensors; `writer` writes composed graphs for a library. The
structures of single backends are in the ``headers.txt`` of their packages; `other_backends` has those of backends that
execute nothing here.
"""
