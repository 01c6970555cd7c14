"""The examples of one file each: what they promise holds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import taichi as ti

import helpers
from helpers import ON_CUDA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AUTOGRAD = EXAMPLES / "autograd.py"


@pytest.fixture(name="autograd", scope="module")
def autograd_fixture():
    """The module, loaded once: its kernels are compiled anew for each program."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    spec = importlib.util.spec_from_file_location("autograd_example", AUTOGRAD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="throws")
def throws_fixture(torch, autograd):  # pylint: disable=W0613
    """Three throws in double precision, which require their gradient."""
    values = [[1.0, 2.0], [0.0, 0.0], [-3.0, 0.5]]
    return torch.tensor(values, dtype=torch.float64, device="cuda" if ON_CUDA else "cpu", requires_grad=True)


@pytest.mark.usefixtures("runtime")
class TestAutograd:
    @pytest.mark.parametrize("bridge", ["SharedFlight", "CopiedFlight"])
    def test_gradients_are_those_of_finite_differences(self, torch, autograd, throws, bridge):
        assert torch.autograd.gradcheck(lambda x: getattr(autograd, bridge).apply(x, 5), throws)

    def test_sharing_copies_nothing(self, torch, autograd, throws, monkeypatch):  # pylint: disable=W0613
        arrays = []
        forwards = autograd.fly
        monkeypatch.setattr(autograd, "fly", lambda *given: (arrays.extend(given), forwards(*given)))
        end = autograd.SharedFlight.apply(throws, 5)
        assert [helpers.Place(array).pointer for array in (arrays[0], arrays[3])] == [throws.data_ptr(), end.data_ptr()]

        backwards = autograd.fly_back
        gradients = []

        def record(*given):
            gradients.extend(helpers.Place(array.grad).pointer for array in given)
            backwards(*given)

        monkeypatch.setattr(autograd, "fly_back", record)
        weights = torch.ones_like(end)
        (throw_grad,) = torch.autograd.grad(end, throws, weights)
        assert [gradients[0], gradients[3]] == [throw_grad.data_ptr(), weights.data_ptr()]

    def test_both_bridges_give_the_same_bits(self, torch, autograd, throws):
        weights = torch.rand_like(throws)
        ends, gradients = [], []
        for bridge in (autograd.SharedFlight, autograd.CopiedFlight):
            ends.append(bridge.apply(throws, 20))
            gradients += torch.autograd.grad(ends[-1], throws, weights)
        assert torch.equal(*ends) and torch.equal(*gradients) and gradients[0].abs().min() > 0

    def test_the_gradient_that_came_in_is_not_written(self, torch, autograd, throws):
        weights = torch.rand_like(throws)
        before = weights.clone()
        torch.autograd.grad(autograd.SharedFlight.apply(throws, 5), throws, weights)
        ti.sync()
        assert torch.equal(weights, before)

    def test_a_broadcast_gradient_is_taken(self, torch, autograd, throws):
        autograd.SharedFlight.apply(throws, 5).sum().backward()
        (expected,) = torch.autograd.grad(autograd.SharedFlight.apply(throws, 5), throws, torch.ones_like(throws))
        assert torch.equal(throws.grad, expected)

    def test_a_throw_that_was_written_in_between_is_refused(self, torch, autograd, throws):
        end = autograd.SharedFlight.apply(throws, 5)
        with torch.no_grad():
            throws.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            end.sum().backward()

    def test_backward_leaves_nothing(self, torch, autograd):
        def step():
            throws = torch.ones(64, 2, device="cuda" if ON_CUDA else "cpu", requires_grad=True)
            autograd.SharedFlight.apply(throws, 2).sum().backward()

        assert helpers.growth(step, 500) < helpers.FLAT

    @pytest.mark.cpu_only("the program runs on the CPU")
    def test_the_program_learns_and_says_that_gradients_are_equal(self, torch):  # pylint: disable=W0613
        command = [sys.executable, str(AUTOGRAD), "--throws", "64", "--steps", "10", "--generations", "100"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 and "the same, bit for bit" in done.stdout, done.stdout + done.stderr
        before, after = (float(part.split(" m^2")[0].split()[-1]) for part in done.stdout.split(",", 1))
        assert after < before / 2

    @pytest.mark.cpu_only("the program runs on the CPU")
    def test_wrong_numbers_are_refused(self, torch):  # pylint: disable=W0613
        command = [sys.executable, str(AUTOGRAD), "--throws", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2 and "--throws is 0, wanted at least 1" in done.stderr
