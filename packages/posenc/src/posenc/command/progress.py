"""Shows the progress of a command, and the estimated time left."""

import shutil
import time
from typing import TextIO

# The time left is shown after this share of the work, or after so many seconds.
SURE_SHARE, SURE_AFTER = 0.05, 20.0


class Progress:
    """Counts work done and to do, in any unit, without output. `for_stream` returns one that prints."""

    def __init__(self) -> None:
        self.begun = False
        self._total = self._done = self._earlier = 0.0
        # The work done and the time after each step. The first step includes the setup.
        self._steps: list[tuple[float, float]] = []

    def begin(self, total: float) -> None:
        """Starts with ``total`` work to do."""
        self.begun = True
        self._total, self._done, self._earlier, self._steps = total, 0.0, 0.0, []

    def skip(self, work: float) -> None:
        """Counts work that was done earlier: a part of the share, but not of the pace that gives the time left."""
        self._total -= work
        self._earlier += work

    def advance(self, work: float, stage: str, detail: str = "") -> None:
        """Adds work done, in a stage such as "RoPE, seed 0: training"."""
        self._done += work
        if work:
            self._steps.append((self._done, time.monotonic()))
        self._show(stage, detail)

    def say(self, line: str) -> None:
        """Prints a permanent line."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the display."""

    @property
    def left(self) -> str:
        """The estimated time left, in minutes and seconds; empty until there is enough data.

        By the pace since the first step or that of the last half of the time, whichever is slower: work may be slower
        than it was at the beginning, because its terms are larger or the machine is busier."""
        if not self._steps:
            return ""
        (first, begun), now = self._steps[0], time.monotonic()
        done, since = self._done - first, now - begun
        if not done or (since < SURE_AFTER and done < SURE_SHARE * self._total):
            return ""
        half = next((step for step in reversed(self._steps) if step[1] <= begun + since / 2), self._steps[0])
        paces = [since / done] + ([(now - half[1]) / (self._done - half[0])] if self._done > half[0] else [])
        seconds = max(paces) * max(self._total - self._done, 0)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return (f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}") + " left"

    def _show(self, stage: str, detail: str) -> None:
        pass


class _Printed(Progress):
    """Prints to a stream: to a terminal one line that changes, elsewhere a line at each new stage and every `EVERY`
    seconds."""

    EVERY = 15.0
    CLEAR = "\r\x1b[2K"

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream, self._is_terminal = stream, stream.isatty()
        self._stage, self._shown = "", 0.0

    def say(self, line: str) -> None:
        self._write((self.CLEAR if self._is_terminal else "") + line + "\n")

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(self.CLEAR)

    def _show(self, stage: str, detail: str) -> None:
        share = (self._earlier + self._done) / max(self._earlier + self._total, 1)
        left = f"  ({self.left})" if self.left else ""
        line, now = f"{share:4.0%}  {stage} {detail}".rstrip() + left, time.monotonic()
        if self._is_terminal:
            self._write(self.CLEAR + line[: shutil.get_terminal_size().columns - 1])
        elif stage != self._stage or now - self._shown >= self.EVERY:
            self._stage, self._shown = stage, now
            self.say(line)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def for_stream(stream: TextIO) -> Progress:
    """A line that changes on a terminal, lines elsewhere."""
    return _Printed(stream)
