"""make test-cuda without a GPU: the refusal, the plan, and the report, whatever becomes of the tests."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import cuda_facts
import cuda_plan
import cuda_report
import cuda_run
import has_gpu

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "ci"

PASSES = """
    import pytest
    def test_red(record_property):
        record_property("lamps", 3)
    def test_green():
        pytest.skip("no green lamp here")
"""
FAILS = """
    def test_blue():
        assert "blue" == "grey"
    def test_white():
        pass
"""
CRASHES = """
    import os
    def test_first():
        pass
    def test_second():
        os.abort()
    def test_third():
        pass
"""
HANGS = """
    import time
    def test_first():
        time.sleep(60)
    def test_second():
        pass
"""
BROKEN = "import no_such_module\n"
SLOW = """
    import time
    def test_first():
        pass
    def test_second():
        time.sleep(60)
    def test_third():
        pass
"""
HUNT = """
    def test_hunt(record_property):
        record_property("hunt", {
            "direction": "lamp to lamp", "hand_overs": 12, "seconds": 1.5, "mismatches": 2,
            "control_hand_overs": 8, "control_mismatches": 7, "verdict": "RACE",
        })
"""


class Runs:
    """Runs of cuda_run.py on small test files, as a rehearsal."""

    def __init__(self, folder):
        self.folder, self.report, self.jobs = folder, folder / "report", []
        stubs = folder / "stubs"
        stubs.mkdir()
        for name in cuda_facts.PEERS:
            if name != "numpy":  # the libraries themselves take seconds to import
                (stubs / f"{name}.py").write_text("raise ImportError('a stub')\n")
        self.environment = {**os.environ, "PYTHONPATH": str(stubs)}

    def add(self, name, code, silence=60, stage=0, **more):
        """Adds a job with one test file."""
        path = self.folder / f"test_{name}.py"
        path.write_text(textwrap.dedent(code))
        self.jobs.append(cuda_plan.job(name, stage, [path.name], silence, folder=str(self.folder), **more))
        return self

    def start(self, *options):
        """Starts the run."""
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self.jobs))
        command = [sys.executable, str(CI / "cuda_run.py"), str(self.report), "--rehearse", "--plan", str(plan)]
        return subprocess.Popen(
            command + list(options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            cwd=self.folder,
        )

    def finish(self, *options):
        """(status, output, report.json, report.txt) of a whole run."""
        process = self.start(*options)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output, self.data(), (self.report / "report.txt").read_text()

    def data(self):
        """What report.json says now."""
        return json.loads((self.report / "report.json").read_text())

    def wait_for_test(self, name):
        """Waits until a test that never ends by itself has begun: the one before it has ended."""
        for _ in range(600):
            logs = list(Path(self.environment["TMPDIR"]).glob(f"test-cuda-*/{name}.jsonl"))
            if logs and "test_second" in logs[0].read_text().splitlines()[-1]:
                return
            time.sleep(0.1)
        pytest.fail(f"{name} did not begin")


def new_runs(folder):
    """Runs with a scratch folder of their own."""
    made = Runs(folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    made.environment["TMPDIR"] = str(scratch)
    return made


@pytest.fixture(name="runs")
def runs_fixture(tmp_path):
    return new_runs(tmp_path)


def suite(data, name):
    """One suite of a report."""
    return next(one for one in data["suites"] if one["name"] == name)


class TestGreenReport:
    """A run in which all is right."""

    def test_all_right_is_green(self, runs):
        runs.report.mkdir()
        for name in ("report.json", "report.txt", "log.txt", "mine.txt"):
            (runs.report / name).write_text("old")
        runs.add("last", "def test_it():\n    assert open('mark').read() == 'x'\n", stage=1)
        runs.add("first", "def test_it():\n    import time\n    time.sleep(1)\n    open('mark', 'w').write('x')\n")
        status, output, data, text = runs.add("lamps", PASSES).finish("--wheel", str(CI / "lib.sh"))
        assert status == 0 and data["green"] and data["complete"], output
        assert text.startswith("rehearsal") and ": GREEN, " in text and text in output
        self.check_counts(data, text)
        self.check_facts(data, text, output)
        self.check_files(runs.report)

    def check_counts(self, data, text):
        assert suite(data, "lamps")["counts"] == {"passed": 1, "failed": 0, "skipped": 1, "not_run": 0}
        assert suite(data, "lamps")["skips"] == {"no green lamp here": 1}
        assert data["totals"] == {"passed": 3, "failed": 0, "skipped": 1, "not_run": 0}
        assert list(data["figures"].values()) == [{"lamps": 3}]
        assert "skipped 1: no green lamp here" in text and "test_red: lamps 3" in text

    def check_facts(self, data, text, output):
        assert data["device"] is None and "numpy" in data["peers"] and data["tools"]["pytest"]
        assert data["wheel"]["file"] == "lib.sh" and len(data["wheel"]["sha256"]) == 64
        assert any(line.startswith("torch: ") for line in data["absent"])
        for line in ("wheel: ", "device: ", "machine: ", "present: ", "absent: "):
            assert line in text and line in output

    def check_files(self, folder):
        """The old report is gone; what is not the report's stays."""
        assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "mine.txt", "report.json", "report.txt"]
        assert (folder / "mine.txt").read_text() == "old"
        assert "#### lamps" in (folder / "log.txt").read_text()


@pytest.fixture(name="mixed", scope="module")
def mixed_fixture(tmp_path_factory):
    """(status, output, report.json, report.txt) of one run in which all sorts of things happen."""
    runs = new_runs(tmp_path_factory.mktemp("mixed"))
    runs.add("lamps", PASSES).add("doors", FAILS).add("crash", CRASHES).add("hang", HANGS, silence=12)
    runs.add("broken", BROKEN).add("races", HUNT).add("usage", PASSES).add("none", "pass\n").add(
        "few", "pass\n", optional=True
    )
    runs.jobs[-3]["arguments"] = ["--no-such-option"]
    return runs.finish("--workers", "3")


class TestReport:
    def test_is_not_green_and_complete(self, mixed):
        status, output, data, text = mixed
        assert status == 1 and not data["green"] and data["complete"] and text in output
        assert ": NOT GREEN, " in text
        assert suite(data, "lamps")["problem"] == ""

    def test_tells_a_failure_with_its_message(self, mixed):
        _, _, data, text = mixed
        found = suite(data, "doors")
        assert found["problem"] == "failed" and found["counts"]["passed"] == 1
        assert found["failures"][0]["test"].endswith("::test_blue") and "grey" in found["failures"][0]["message"]
        assert "FAILED test_doors.py::test_blue" in text and "'grey'" in text

    def test_a_crash_costs_one_test_and_no_more(self, mixed):
        _, _, data, text = mixed
        found = suite(data, "crash")
        assert found["processes"] == 2
        assert found["counts"] == {"passed": 2, "failed": 1, "skipped": 0, "not_run": 0}
        assert found["failures"][0]["test"].endswith("::test_second") and "SIGABRT" in found["failures"][0]["message"]
        assert "SIGABRT" in text

    def test_a_hang_costs_one_test_and_no_more(self, mixed):
        found = suite(mixed[2], "hang")
        assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 0, "not_run": 0}
        assert "no sign for 12 s" in found["failures"][0]["message"] and found["problem"]

    def test_a_file_that_cannot_be_imported_is_a_failure(self, mixed):
        found = suite(mixed[2], "broken")
        assert found["counts"]["failed"] == 1 and "no_such_module" in found["failures"][0]["message"]

    def test_a_pytest_that_does_not_start_shows_what_it_printed(self, mixed):
        _, _, data, text = mixed
        found = suite(data, "usage")
        assert found["problem"] == "pytest ended with status 4"
        assert "no-such-option" in found["output_tail"] and "no-such-option" in text

    def test_no_test_is_no_success_unless_it_may_be(self, mixed):
        assert suite(mixed[2], "none")["problem"] == suite(mixed[2], "few")["problem"] == ""  # a rehearsal
        job = cuda_run.Job(cuda_plan.job("lamps", 0, []), Path("nowhere"), {})
        job.status = 5
        assert cuda_report.Suite(job).problem() == "no test passed"
        job.spec["optional"] = True
        assert cuda_report.Suite(job).problem() == ""

    def test_the_hunt_has_a_line_of_its_own(self, mixed):
        _, _, data, text = mixed
        assert data["race_hunt"][0]["hand_overs"] == 12
        assert "race hunt, lamp to lamp: 12 hand-overs in 1.5 s, 2 mismatches; without the wait 7 of 8" in text

    def test_totals_are_sums(self, mixed):
        data = mixed[2]
        for outcome, count in data["totals"].items():
            assert count == sum(found["counts"][outcome] for found in data["suites"])


class TestEarlyEnd:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
    def test_an_interrupt_leaves_a_partial_report(self, runs, number):
        process = runs.add("lamps", PASSES).add("slow", SLOW, stage=1).add("never", PASSES, stage=2).start()
        runs.wait_for_test("slow")
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
        data = runs.data()
        assert process.returncode == 1 and not data["complete"] and not data["green"], output
        assert data["incomplete_because"] == f"interrupted by {number.name}"
        assert suite(data, "lamps")["problem"] == ""
        assert suite(data, "slow")["counts"] == {"passed": 1, "failed": 0, "skipped": 0, "not_run": 2}
        assert suite(data, "never")["problem"] == "did not start"
        text = (runs.report / "report.txt").read_text()
        assert f"INCOMPLETE: interrupted by {number.name}" in text and text in output

    def test_the_time_is_limited(self, runs):
        status, _, data, text = runs.add("slow", SLOW).finish("--minutes", "0.1")
        assert status == 1 and data["incomplete_because"] == "the time is up" and data["seconds"] < 60
        assert "INCOMPLETE: the time is up" in text

    def test_what_runs_if_there_is_time_may_be_cut_short(self, runs):
        runs.add("lamps", PASSES).add("slow", SLOW, stage=1, if_time=True).add("never", PASSES, stage=2, if_time=True)
        status, output, data, text = runs.finish("--minutes", "0.4")
        assert status == 0 and data["green"] and data["complete"], output
        assert suite(data, "slow")["remark"].startswith("cut short") and suite(data, "slow")["counts"]["not_run"] == 2
        assert suite(data, "never")["remark"] == "no time for it" and "no time for it" in text

    def test_a_killed_run_has_left_what_was_known(self, runs):
        process = runs.add("lamps", PASSES).add("slow", SLOW, stage=1).start()
        runs.wait_for_test("slow")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        data = runs.data()
        assert not data["complete"] and "killed" in data["incomplete_because"]
        assert suite(data, "lamps")["counts"]["passed"] == 1
        self.end_orphan(runs)

    @staticmethod
    def end_orphan(runs):
        """Ends the pytest that the killed run left behind: its log's folder is in its environment."""
        mark = f"CUDA_TEST_LOG={runs.environment['TMPDIR']}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue


class TestPlan:
    def files_of(self, jobs):
        return [word for job in jobs for word in job["arguments"] if word.startswith("tests/")]

    def test_every_file_for_a_gpu_is_run(self):
        jobs, _ = cuda_plan.whole(ROOT)
        planned = self.files_of(jobs)
        for folder in ("cuda", "interop"):
            for path in (ROOT / "tests" / folder).glob("test_*.py"):
                assert f"tests/{folder}/{path.name}" in planned
        assert all((ROOT / word).exists() for word in planned)

    def test_names_are_unique(self):
        jobs, _ = cuda_plan.whole(ROOT)
        names = [job["name"] for job in jobs]
        assert len(set(names)) == len(names)

    def test_no_test_runs_twice(self):
        jobs, _ = cuda_plan.whole(ROOT)
        split = ("test_cases.py", "test_peers.py")
        planned = [word for word in self.files_of(jobs) if not word.endswith(split)]
        assert len(set(planned)) == len(planned)

    @pytest.mark.parametrize("name", ["test_peers.py", "test_cases.py"])
    def test_parts_of_a_file_are_disjoint_and_complete(self, name):
        jobs, _ = cuda_plan.whole(ROOT)
        parts = [job["arguments"] for job in jobs if job["arguments"][0] == f"tests/interop/{name}"]
        words = cuda_plan.LIBRARIES + (cuda_plan.TIMED,)
        tests = ["a test of nothing"] + [f"test of {one} and {two}" for one in words for two in words]
        for test in tests:
            hits = [part for part in parts if len(part) == 1 or _matches(part[2], test)]
            assert len(hits) == 1, (test, hits)

    def test_what_needs_hypothesis_is_left_out_and_named_without_it(self):
        jobs, left_out = cuda_plan.whole(ROOT, has_hypothesis=False)
        assert not any("test_properties" in word for word in self.files_of(jobs))
        assert any("test_properties.py" in line and "hypothesis" in line for line in left_out)

    def test_what_is_measured_runs_alone(self):
        jobs, _ = cuda_plan.whole(ROOT)
        for name in ("streams", "races", "memory", "timed"):
            stage = next(job["stage"] for job in jobs if job["name"] == name)
            assert [job["name"] for job in jobs if job["stage"] == stage] == [name]


def _matches(expression, test):
    """What pytest -k does, for names joined by `and` and `not`."""
    return all(
        (part[len("not ") :] not in test) if part.startswith("not ") else (part in test)
        for part in expression.split(" and ")
    )


class TestStart:
    @pytest.fixture(name="checkout")
    def checkout_fixture(self, tmp_path):
        """The files of a checkout, without the submodule and without mode bits."""
        for name in ("ci", "requirements"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("build.sh", "UPSTREAM"):
            shutil.copy(ROOT / name, tmp_path / name)
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.chmod(0o644)
        return tmp_path

    def start(self, checkout, *words, **environment):
        """Runs build.sh as a user does that has no mode bits."""
        return subprocess.run(
            ["bash", "build.sh", "test-cuda", *words, f"PYTHON={sys.executable}"],
            cwd=checkout,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    def test_without_a_gpu_it_says_so_and_does_nothing(self, checkout):
        if not has_gpu.problem():
            pytest.skip("this machine has a GPU")
        done = self.start(checkout)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout == ""
        assert not (checkout / "build").exists()

    def test_a_wheel_that_is_not_there_is_named(self, checkout):
        done = self.start(checkout, "--rehearse", "WHEEL=no/such.whl")
        assert done.returncode == 1 and "no/such.whl" in done.stderr and not (checkout / "build").exists()

    def test_without_a_wheel_it_says_how_to_build_one(self, checkout):
        done = self.start(checkout, "--rehearse")
        assert done.returncode == 1 and "make wheel" in done.stderr and not (checkout / "build").exists()


DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strcpy(name, "Lamp 3000 MIG 1g.5gb"); return 0; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 5ul << 30; return 0; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
#ifndef OLD
int cuDeviceGetPCIBusId(char *text, int length, int device) { strcpy(text, "0000:01:00.0"); return 0; }
#endif
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 115 ? 1 : 0;
  return 0;
}
"""
SMI = """#!/bin/sh
case "$*" in *--id=0000:01:00.0*) echo "580.1.2, Enabled" ;; *) exit 1 ;; esac
"""


class TestFacts:
    @pytest.fixture(name="machine")
    def machine_fixture(self, tmp_path):
        """A function that runs Python with a driver that sees so many GPUs, and with an nvidia-smi or without."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler for the stand-in of the driver: apt-get install gcc")
        (tmp_path / "driver.c").write_text(DRIVER)

        def run(*words, count=1, smi=True, old=False):
            library = tmp_path / "libcuda.so.1"
            options = ["-shared", "-fPIC", f"-DCOUNT={count}"] + ["-DOLD"] * old
            subprocess.run([compiler, *options, "-o", library, tmp_path / "driver.c"], check=True)
            (tmp_path / "nvidia-smi").write_text(SMI)
            (tmp_path / "nvidia-smi").chmod(0o755 if smi else 0o644)
            environment = {
                **os.environ,
                "LD_LIBRARY_PATH": str(tmp_path),
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(CI),
            }
            return subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=False, env=environment
            )

        return run

    DEVICE = "import json, cuda_facts; print(json.dumps(cuda_facts.device()))"

    def test_the_device_is_described(self, machine):
        facts = json.loads(machine("-c", self.DEVICE).stdout)
        assert facts["name"] == "Lamp 3000 MIG 1g.5gb" and facts["compute_capability"] == "9.0"
        assert facts["driver"] == "580.1.2" and facts["mig"] == "on" and facts["cuda_of_driver"] == "13.1"
        assert facts["memory_bytes"] == 5 << 30 and facts["compute_mode"] == "default" and facts["memory_pools"] is True

    def test_the_device_is_described_without_nvidia_smi(self, machine):
        facts = json.loads(machine("-c", self.DEVICE, smi=False).stdout)
        assert facts["mig"] == "on" and facts["name"] and "driver" in facts

    def test_a_driver_that_lacks_a_function_is_described_too(self, machine):
        facts = json.loads(machine("-c", self.DEVICE, old=True).stdout)
        assert facts["name"] == "Lamp 3000 MIG 1g.5gb" and facts["devices"] == 1

    @pytest.mark.parametrize("count, status", [(1, 0), (0, 1)])
    def test_a_gpu_is_found_where_there_is_one(self, machine, count, status):
        done = machine(str(CI / "has_gpu.py"), count=count)
        assert done.returncode == status and (status == 0 or "sees no GPU" in done.stderr)

    def test_what_is_needed_and_missing_is_named(self, tmp_path):
        (tmp_path / "lamp-1.dist-info").mkdir()
        (tmp_path / "lamp-1.dist-info" / "METADATA").write_text(
            "Name: taichi\nVersion: 1\nRequires-Dist: no_such_lamp\n"
        )
        (tmp_path / "lamp-1.dist-info").rename(tmp_path / "taichi-1.dist-info")
        done = subprocess.run(
            [sys.executable, str(CI / "cuda_facts.py"), "needed", "/usr/bin/lamp"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert done.returncode == 1
        assert (
            "/usr/bin/lamp -m pip install" in done.stderr and "no_such_lamp" in done.stderr and "WHEELS" in done.stderr
        )
