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

from posenc_lab.executors import slurm as of_slurm
from posenc_lab.executors.choice import executor
from posenc_lab.executors.executor import TRIES, Executor, cores, outcome
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
    found = outcomes(executor("local", 2, tmp_path, {}), tmp_path, *REASONS, "die", "place")
    own = f"{max(cores() // 2, 1)} threads, in a group of its own"
    assert found == {**REASONS, "die": f"its process ended with {-signal.SIGKILL}", "place": own}
    begun = {job.does: job.begun for job in told(tmp_path, *found)}
    assert begun == {**dict.fromkeys(found, 1), "die once": 2, "die": TRIES}


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
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, text=True)
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
        executor("rya", None, tmp_path, {})


@pytest.mark.more
def test_ray_runs_all_and_begins_killed_ones_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'posenc[grid]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # otherwise Ray waits for one that was started here and is gone
    words = ("", "refuse", "die once")
    found = outcomes(executor("ray", 2, tmp_path, {"ray": {"num_cpus": 0.5}}), tmp_path, *words, "die")
    assert "died" in found.pop("die")
    assert found == {word: REASONS[word] for word in words}
    begun = {job.does: job.begun for job in told(tmp_path, *found, "die")}
    assert begun == {**dict.fromkeys(found, 1), "die once": 2, "die": TRIES}
    with pytest.raises(ValueError, match=r"ray must have options of ray\.remote, got \{'num_cpu': 1\}: "):
        outcomes(executor("ray", 1, tmp_path, {"ray": {"num_cpu": 1}}), tmp_path, "odd")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_slurm, "EVERY", 0.1)


FAKES = {
    # Runs each element of the array in the background, as a node would, and says its number.
    "sbatch": """
import os, pathlib, re, subprocess, sys
script = pathlib.Path(sys.argv[-1]).read_text()
pathlib.Path(os.environ["FAKE_SLURM"], "script").write_text(script)
array = re.search(r"#SBATCH --array=0-(\\d+)%", script)
for n in range(int(array[1]) + 1 if array else 1):
    about = {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "node", "SLURM_JOB_ID": str(100 + n) if array else "7"}
    if array:
        about |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(n)}
    subprocess.Popen(["bash", sys.argv[-1]], env={**os.environ, **about}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True)
print("Submitted batch job 7")
""",
    "srun": """
import os, sys
command = [word for word in sys.argv[1:]]
while command[0].startswith("--"):
    command = command[2 if command[0] in ("--output", "--error") else 1 :]
os.execvp(command[0], command)
""",
    # All ended; what a job that left no result shows is its state here.
    "sacct": """
print("JobID|State|NodeList")
for job in ("7", "7_0", "7_1", "7_2"): print(f"{job}|NODE_FAIL|node")
""",
    "scancel": """
import os, pathlib, sys
with pathlib.Path(os.environ["FAKE_SLURM"], "cancelled").open("a") as file: file.write(sys.argv[-1] + "\\n")
""",
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None) -> Path:
    """A machine with Slurm's commands on its PATH, of which each is a few lines."""
    core = pytest.importorskip("submitit.core.core", reason="submitit is not installed: pip install 'posenc[grid]'")
    monkeypatch.setattr(core.Job, "_results_timeout_s", 0.5)  # the time that a shared disk may need
    folder = tmp_path / "cluster"
    folder.mkdir()
    for name, script in FAKES.items():
        (folder / name).write_text(f"#!{sys.executable}\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    return folder


@pytest.mark.more
def test_slurm_gets_an_array_and_runs_all(tmp_path: Path, cluster: Path) -> None:
    runs = executor("slurm", 3, tmp_path / "logs", {"slurm": {"timeout_min": 5, "slurm_partition": "gpu"}})
    found = outcomes(runs, tmp_path, "", "odd", "refuse")
    assert found == {word: REASONS[word] for word in ("", "odd", "refuse")}
    script = (cluster / "script").read_text()
    for line in ("--array=0-2%3", "--partition=gpu", "--time=5", "--job-name=posenc", "--signal=USR2@90"):
        assert f"#SBATCH {line}\n" in script
    assert not (cluster / "cancelled").exists()


@pytest.mark.more
def test_slurm_cancels_what_still_runs_and_names_lost_nodes(tmp_path: Path, cluster: Path) -> None:
    runs = executor("slurm", None, tmp_path / "logs", {"slurm": {"timeout_min": 5, "slurm_array_parallelism": 9}})
    jobs = told(tmp_path, "odd", "long")
    with closing(runs(run, jobs)) as ended:
        assert next(ended) == (jobs[0], "not today")
        until(tmp_path / "long.ready")
    assert (cluster / "cancelled").read_text() == "7_1\n"
    os.kill(int((tmp_path / "long.begun").read_text()), signal.SIGTERM)  # what scancel does
    until(tmp_path / "long.saved")
    ((_, why),) = executor("slurm", 1, tmp_path / "logs", {"slurm": {"timeout_min": 5}})(run, told(tmp_path, "die"))
    assert "NODE_FAIL" in why


def test_a_machine_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'posenc[grid]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="are you indeed on a slurm cluster"):
        outcomes(executor("slurm", None, tmp_path / "logs", {}), tmp_path, "odd")
