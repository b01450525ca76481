"""Executors run every job, give reasons, begin again what was killed, and stop in order."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from posenc_lab.executors import executor_of
from posenc_lab.executors import slurm as of_slurm
from posenc_lab.executors.executor import MAX_ATTEMPTS, Executor, cores, outcome
from posenc_lab.executors.local import local
from tests.executors.jobs import Job, run, told

REASONS = {"": "", "odd": "not today", "refuse": "no such text", "bug": "a bug", "die once": ""}


def outcomes(runs: Executor, folder: Path, *words: str) -> dict[str, str]:
    ended = [(job.does, why) for job, why in runs(run, told(folder, *words))]
    assert len(dict(ended)) == len(ended) == len(words)
    return dict(ended)


def until(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.01)


def test_local_processes_run_all_and_begin_killed_ones_again(tmp_path: Path) -> None:
    found = outcomes(executor_of("local", 2, tmp_path, {}), tmp_path, *REASONS, "die", "place")
    own = f"{max(cores() // 2, 1)} threads, in a group of its own"
    assert found == {**REASONS, "die": f"its process ended with {-signal.SIGKILL}", "place": own}
    begun = {job.does: job.begun for job in told(tmp_path, *found)}
    assert begun == {**dict.fromkeys(found, 1), "die once": 2, "die": MAX_ATTEMPTS}


def test_closing_asks_running_jobs_once_and_waits(tmp_path: Path) -> None:
    jobs = told(tmp_path, "odd", "long", "never begun")
    with closing(local(run, jobs, 1)) as ended:
        assert next(ended) == (jobs[0], "not today")
        # The next job is begun when the iteration goes on, which then waits for it: something interrupts that wait.
        threading.Thread(target=lambda: (until(tmp_path / "long.ready"), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            next(ended)
    assert (tmp_path / "long.saved").read_text() == "1"
    assert jobs[2].begun == 0


def test_jobs_end_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.executors.jobs import run, told\n"
        "from posenc_lab.executors.local import local\n"
        "if __name__ == '__main__': list(local(run, told(Path(sys.argv[1]), 'long'), 1))"
    )
    command, root = [sys.executable, "-c", script, str(tmp_path)], Path(__file__).parents[2]  # whose tests it imports
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root)
    until(tmp_path / "long.ready")
    parent.kill()
    _, error = parent.communicate(timeout=60)  # until the job has ended too
    until(tmp_path / "long.saved")
    assert "Traceback" not in error


def test_an_unexpected_error_shows_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(run, Job("bug", tmp_path)) == "a bug"
    assert "jobs.py" in capsys.readouterr().err
    assert outcome(run, Job("refuse", tmp_path)) == "no such text"
    assert capsys.readouterr().err == ""


def test_an_unknown_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"on must be local, slurm, ray or ray://HOST:PORT, got 'rya'"):
        executor_of("rya", None, tmp_path, {})


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_slurm, "SECONDS_BETWEEN_POLLS", 0.1)


@pytest.mark.more
def test_submitit_runs_all_here(tmp_path: Path, often: None) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    here = {"slurm": {"cluster": "local", "timeout_min": 5}}
    found = outcomes(executor_of("slurm", None, tmp_path / "logs", here), tmp_path, "", "odd", "refuse")
    assert found == {word: REASONS[word] for word in ("", "odd", "refuse")}
    wrong = {"slurm": {"cluster": "local", "partitoin": "a"}}
    with pytest.raises(ValueError, match=r"slurm must have parameters of submitit, got \{'partitoin': 'a'\}: "):
        outcomes(executor_of("slurm", None, tmp_path / "logs", wrong), tmp_path, "odd")


def test_a_machine_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="are you indeed on a slurm cluster"):
        outcomes(executor_of("slurm", None, tmp_path / "logs", {}), tmp_path, "odd")
