"""QNN's C interface, served: libraries that any client of QNN can load, over the API in Python."""
