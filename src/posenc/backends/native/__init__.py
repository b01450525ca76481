"""The kernel for the CPU. To import any part of it registers its operators."""

from posenc.backends.native import operator as operator
