"""OpenCL, as far as a backend needs it: devices, contexts, memory objects, programs, commands and events.

The library is called by its C functions, so nothing here needs a Python package for OpenCL; what a client has of one
(pyopencl) is taken by its handle. Every error of the library becomes a `QnnError` in `status`.
"""
