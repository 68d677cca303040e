"""The CPU backend: the native engine in the client's own process."""
