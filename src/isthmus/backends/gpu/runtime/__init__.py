"""The part of OpenCL that a backend needs: devices, contexts, memory objects, programs, commands and events.

The library is called through its C functions, so no Python package for OpenCL is needed. A client's objects of such a
package (pyopencl) are accepted by their handles. Every error of the library becomes a `QnnError` in `status`.
"""
