"""The LPAI backend: memory that its client plans and provides, in this process or on an accelerator."""
