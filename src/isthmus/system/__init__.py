"""System resources with protection against interrupts: descriptors, threads, locks, files and child processes."""
