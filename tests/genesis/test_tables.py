"""The tables of calls.py know every method."""

import inspect

import calls
import pytest


@pytest.fixture(scope="module", name="classes")
def classes_fixture():
    from genesis.engine.entities import RigidEntity  # pylint: disable=import-outside-toplevel
    from genesis.engine.solvers.rigid.rigid_solver_decomp import RigidSolver  # pylint: disable=import-outside-toplevel

    return {"RigidEntity": RigidEntity, "RigidSolver": RigidSolver}


def public_methods(cls, *prefixes):
    """Names of the methods with these prefixes."""
    return {name for name, _ in inspect.getmembers(cls, callable) if name.startswith(prefixes)}


@pytest.mark.parametrize("kind", ["RigidEntity", "RigidSolver"])
def test_no_method_is_forgotten(classes, kind):
    known = {*calls.GETTERS[kind], *calls.setter_calls(6, 7, 3, 4)[kind], *calls.LEFT_OUT[kind]}
    assert public_methods(classes[kind], "get_", "set_", "control_") == known


@pytest.mark.parametrize("kind", ["RigidEntity", "RigidSolver"])
def test_every_getter_that_reads_a_field_takes_copy(classes, kind):
    for name, how in calls.GETTERS[kind].items():
        if how != "none" and name != "get_gravity":
            parameters = inspect.signature(getattr(classes[kind], name)).parameters
            assert "copy" in parameters, name
