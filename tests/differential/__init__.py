"""Our libQnnHtp.so compared with the vendor's, where its package is installed (`make differential`)."""
