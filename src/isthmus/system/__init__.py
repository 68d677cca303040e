"""What the operating system gives: descriptors, threads, locks, files and child processes, safe from interrupts."""
