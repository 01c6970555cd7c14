"""The patched Genesis returns what the released one does, bit for bit."""

import pytest

SCENES = [(robot, n_envs) for robot in ("go2", "franka") for n_envs in (0, 1, 64)]
SHORT = ("go2", 64, 20, "falling")


def test_getters_and_setters_are_those_of_the_released_genesis(runner, assert_same):
    assert_same(runner.notes("run_scene.py", *SHORT), runner.stock_notes("run_scene.py", *SHORT))


@pytest.mark.full
@pytest.mark.parametrize("robot, n_envs", SCENES)
def test_a_hundred_steps_are_those_of_the_released_genesis(runner, assert_same, robot, n_envs):
    wanted = runner.stock_notes("run_scene.py", robot, n_envs, 100, "contacts")
    assert_same(runner.notes("run_scene.py", robot, n_envs, 100, "contacts"), wanted)


@pytest.mark.full
def test_switched_off_it_is_the_released_genesis(runner, assert_same):
    assert_same(
        runner.notes("run_scene.py", *SHORT, GS_ENABLE_ZEROCOPY="0"), runner.stock_notes("run_scene.py", *SHORT)
    )


@pytest.mark.full
def test_particles_are_those_of_the_released_genesis(runner, assert_same):
    assert_same(runner.notes("run_particles.py", 100), runner.stock_notes("run_particles.py", 100))
