"""A kernel of posenc's own for the CPU, in C++ that the machine's compiler builds once."""
