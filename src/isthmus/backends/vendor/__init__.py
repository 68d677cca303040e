"""The vendor's own HTP library behind this API: the user's installation, called by its public functions only.

The library is never part of this project, and always runs in a child process, because it can end the process that
loads it. `library` has this side of that process, `child` is the program that runs there.
"""

NAME = "qnn-htp"
"""The backend's name, and the key of its configuration."""
