"""The accelerator: another process that runs graphs and sees only memory whose file descriptors it was sent.

`device`, `process` and `queue` are the client's side; `__main__` in this folder is the other side.
"""
