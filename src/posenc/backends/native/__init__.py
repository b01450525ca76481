"""A kernel of posenc's own for the CPU, in C++ that is built with posenc."""
