"""What a step computes, in numbers that every engine shares: strides, windows, matrices, borders, 8-bit factors."""
