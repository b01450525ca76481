"""The kernel on another system or processor: a process that an emulator runs loads the library, and what a call points
to is sent there and back. Takes the place of a library in `posenc.backends.native.proof.failures`."""

import ctypes
import gc
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from posenc.backends.native.library import FUNCTIONS
from posenc.backends.native.operator import Call, OfTile, _Field

SOURCE = Path(__file__).with_name("emulated_kernel.cpp")


def pointers(structure: type[ctypes.Structure], start: int = 0) -> Iterator[int]:
    """Where in a structure there are addresses."""
    for name, kind, *_ in structure._fields_:
        at = start + getattr(structure, name).offset
        if kind is ctypes.c_void_p:
            yield at
        elif issubclass(kind, ctypes.Structure):
            yield from pointers(kind, at)


class EmulatedLibrary:
    """The library at a path, as `ctypes.CDLL` would be, called by a program that ``command`` runs."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        gc.freeze()  # what is given to a call is made later
        self.process = subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in FUNCTIONS:
            setattr(self, name, self._function(name))

    def close(self) -> None:
        """Ends the program."""
        self.process.communicate()
        gc.unfreeze()

    def _function(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self._give(struct.pack("<q", len(name)), name.encode())
            if name == "posenc_fields":
                return self._fields(*given)
            return self._run(given[0]._obj, *given[1:]) if given else self._number()

        return call

    def _give(self, *parts: bytes) -> None:
        assert self.process.stdin is not None
        for part in parts:
            self.process.stdin.write(part)
        self.process.stdin.flush()

    def _take(self, size: int) -> bytes:
        assert self.process.stdout is not None
        found = self.process.stdout.read(size)
        if len(found) != size:
            raise RuntimeError(f"the program ended with code {self.process.wait()}")
        return found

    def _number(self) -> int:
        return int(struct.unpack("<q", self._take(8))[0])

    def _fields(self, to: Any) -> int:
        each = [(self._number(), self._number(), self._take(self._number())) for _ in range(self._number())]
        self.fields = (_Field * len(each))(*((name, offset, size) for offset, size, name in each))
        to._obj.contents = self.fields[0]
        return len(each)

    def _run(self, call: Call, is_backward: Any = None) -> int:
        call.pool = None
        used = {x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)}
        memory = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in used}
        memory[call.tiles] = call.count * ctypes.sizeof(OfTile)
        content = bytes(call)
        parts, places = dict[int, int](), []
        for field in pointers(Call):
            (address,) = struct.unpack_from("<q", content, field)
            if address:
                start = next(a for a, size in memory.items() if a <= address < a + max(size, 1))
                places.append((field, parts.setdefault(start, len(parts)), address - start))
        self._give(struct.pack("<q", len(content)), content)
        self._give(struct.pack("<qq", is_backward.value if is_backward else 0, len(parts)))
        for start in parts:
            self._give(struct.pack("<q", memory[start]), ctypes.string_at(start, memory[start]))
        self._give(struct.pack("<q", len(places)), *(struct.pack("<qqq", *place) for place in places))
        answer, changed = self._number(), Call.from_buffer_copy(self._take(len(content)))
        call.threads = changed.threads
        for start in parts:
            ctypes.memmove(start, self._take(memory[start]), memory[start])
        return answer
