"""Engines turn a schedule into something that executes.

`native` compiles kernels for this machine's processor; `opencl` writes them for an OpenCL device.
"""
