"""Machine code: compiled from typed Python by child processes, kept in a checked folder, linked and loaded here.

The room knows nothing of what the code does. Its users choose the name and the key that code is kept under.
"""
