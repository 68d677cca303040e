"""How each operation becomes instructions: one table a family, merged by `isthmus.engine.native.lower`."""
