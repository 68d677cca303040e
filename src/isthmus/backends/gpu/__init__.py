"""The GPU backend: OpenCL, with buffers of the client's own."""
