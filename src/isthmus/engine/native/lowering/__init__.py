"""Functions that write each operation's instructions: a table per family, merged by `isthmus.engine.native.lower`."""
