"""Foreign libraries in a process of their own: the process, and QNN's C structures in it.

A library of the vendor or of a client may end its process, hang, or write anywhere in it. It is never loaded into ours.
"""
