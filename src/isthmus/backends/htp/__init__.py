"""The HTP backend: an accelerator in a process of its own, with registered memory."""
