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
        self._total = self._done = 0.0
        self._first = (0.0, 0.0)  # the work done and the time after the first step, which includes the setup

    def begin(self, total: float) -> None:
        """Starts with ``total`` work to do."""
        self.begun = True
        self._total, self._done = total, 0.0

    def skip(self, work: float) -> None:
        """Removes work that was done earlier, so that it does not affect the estimate of the time left."""
        self._total -= work

    def advance(self, work: float, stage: str, detail: str = "") -> None:
        """Adds work done, in a stage such as "rope, seed 0: training"."""
        begun, self._done = self._done > 0, self._done + work
        if work and not begun:
            self._first = (self._done, time.monotonic())
        self._show(stage, detail)

    def say(self, line: str) -> None:
        """Prints a permanent line."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the display."""

    @property
    def left(self) -> str:
        """The estimated time left, in minutes and seconds; empty until there is enough data."""
        done, since = self._done - self._first[0], time.monotonic() - self._first[1]
        if not done or (since < SURE_AFTER and done < SURE_SHARE * self._total):
            return ""
        seconds = since * max(self._total - self._done, 0) / done
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
        self._rich.update(self._task, description=description, completed=self._done, total=self._total, left=self.left)


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
            self.say(f"{self._done / max(self._total, 1):4.0%}  {stage} {detail}".rstrip() + left)


def for_console(console: Console) -> Progress:
    """A bar on a terminal, lines elsewhere."""
    return _Bar(console) if console.is_terminal else _Lines(console)
