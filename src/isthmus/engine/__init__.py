"""Engines turn a schedule into something that executes.

`native` compiles kernels for this machine's processor; a backend for another device may have an engine of its own.
"""
