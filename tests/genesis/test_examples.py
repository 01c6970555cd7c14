"""examples/reach: a policy learns the same on copied and on shared state, bit for bit."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAME = "rewards and weights of the two trainings: the same bits"


def train(runner, launcher, *options, folder=EXAMPLES):
    """Runs the example; returns what it printed."""
    return runner.call(sys.executable, *launcher, "-m", "reach", *options, PYTHONPATH=str(folder))


def mean_rewards(printed):
    """Before and at the end, from the example's last words."""
    words = next(line for line in printed.splitlines() if line.startswith("mean reward of a step")).split()
    return float(words[5]), float(words[7])


@pytest.mark.full
def test_copying_and_sharing_learn_the_same(runner):
    printed = train(runner, (), "--iterations", "40")
    before, after = mean_rewards(printed)
    assert SAME in printed and after > before + 0.1


@pytest.mark.full
def test_processes_of_torchrun_learn_together(runner):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = train(runner, launcher, "--environments", "4", "--iterations", "3")
    assert SAME in printed and "weights of the 2 processes: the same bits" in printed


@pytest.mark.full
def test_a_view_that_does_not_follow_is_noticed(runner, tmp_path):
    """Were the views not live, the example would say so: here they are clones."""
    package = tmp_path / "reach"
    package.mkdir()
    for source in (EXAMPLES / "reach").glob("*.py"):
        text = source.read_text(encoding="utf-8").replace("(copy=False)", "(copy=False).clone()")
        (package / source.name).write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match="NOT the same"):
        train(runner, (), "--environments", "4", "--iterations", "2", folder=tmp_path)
