"""The OpenCL engine: a schedule becomes kernel launches for a device, with sources of our own.

It runs nothing itself.
"""
