"""Shows the progress of a command, and the estimated time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

# The time left is shown after this share of the work, or after so many seconds.
SURE_SHARE, SURE_AFTER = 0.05, 20.0


class Progress:
    """Counts work done and to do, in any unit, without output. `for_console` returns one that prints."""

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
        """Adds work done, in a stage such as "rope, seed 0: training"."""
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
        than it was at the beginning, because its pieces are larger or the machine is busier."""
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


class _Bar(Progress):
    """A progress bar, for a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        about, share = TextColumn("{task.description}"), TextColumn("{task.percentage:3.0f} % {task.fields[left]}")
        self._rich = RichProgress(about, BarColumn(), share, console=console, transient=True)
        self._task = self._rich.add_task("", total=None, left="")

    def begin(self, total: float) -> None:
        super().begin(total)
        self._rich.start()

    def say(self, line: str) -> None:
        self._rich.console.print(line, highlight=False, markup=False)

    def __exit__(self, *_: object) -> None:
        self._rich.stop()

    def _show(self, stage: str, detail: str) -> None:
        description = f"{stage} {detail}".rstrip()
        done, total = self._earlier + self._done, self._earlier + self._total
        self._rich.update(self._task, description=description, completed=done, total=total, left=self.left)


class _Lines(Progress):
    """A line at each new stage and every `EVERY` seconds, for a log."""

    EVERY = 15.0

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._stage, self._shown = "", 0.0

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _show(self, stage: str, detail: str) -> None:
        now = time.monotonic()
        if stage != self._stage or now - self._shown >= self.EVERY:
            self._stage, self._shown = stage, now
            left = f"  ({self.left})" if self.left else ""
            share = (self._earlier + self._done) / max(self._earlier + self._total, 1)
            self.say(f"{share:4.0%}  {stage} {detail}".rstrip() + left)


def for_console(console: Console) -> Progress:
    """A bar on a terminal, lines elsewhere."""
    return _Bar(console) if console.is_terminal else _Lines(console)
