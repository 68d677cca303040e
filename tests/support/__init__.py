"""What several folders of tests use: networks, oracles, processes, waiting, interrupts."""
