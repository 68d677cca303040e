"""How each operation becomes instructions: one table per family, merged by `isthmus.engine.native.lower`."""
