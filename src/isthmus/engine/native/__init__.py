"""The native engine: a schedule becomes a program of machine-code kernels, run by one native call."""
