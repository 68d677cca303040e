"""How each operation becomes kernel launches: one table a family, merged by `isthmus.backends.gpu.compile.lower`."""
