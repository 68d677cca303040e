"""The OpenCL engine: turns a schedule into kernel launches for a device, with sources that it generates.

It does not run anything itself.
"""
