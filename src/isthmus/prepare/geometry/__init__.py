"""The geometry of steps, shared by all engines: strides, windows, matrices, borders, 8-bit factors."""
