"""For the tests of programs that use QNN: a plugin for pytest (`isthmus.testing.plugin`)."""
