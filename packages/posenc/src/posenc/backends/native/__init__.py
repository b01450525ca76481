"""The CPU kernel. Importing any module of this package registers its operators."""

from posenc.backends.native import operator as operator
