"""Checks of shared state on small scenes, in one process: building a scene takes longer than all of them.

    python run_checks.py notes.json

Each function `check_*` is a test of test_sharing.py; what it raises is noted there.
"""

import gc
import json
import os
import sys
import threading
import traceback
import weakref
from pathlib import Path

import genesis as gs
import numpy as np
import taichi as ti
import torch
from genesis.utils import misc

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_scene import require_sharing  # pylint: disable=wrong-import-position

N_ENVS = 3
REBUILDS = 10 if os.environ.get("GENESIS_FULL", "") not in ("", "0") else 1


def build(n_envs=N_ENVS, height=0.5):
    """A falling box. Without contacts the kernels compile in seconds; test_same.py has those."""
    scene = gs.Scene(
        show_viewer=False,
        rigid_options=gs.options.RigidOptions(enable_collision=False, disable_constraint=True),
    )
    box = scene.add_entity(gs.morphs.Box(pos=(0.0, 0.0, height), size=(0.1, 0.1, 0.1)))
    scene.build(n_envs=n_envs, compile_kernels=False)
    return scene, box


def same(first, second):
    """Whether two tensors have the same bits."""
    return first.shape == second.shape and first.dtype == second.dtype and bool((first == second).all())


def refused(call, *words):
    """The call has to raise a GenesisException with these words."""
    try:
        call()
    except gs.GenesisException as error:
        assert all(word in str(error) for word in words), str(error)
        return
    raise AssertionError("it was not refused")


def check_live_view_follows_the_simulation(scene, box):
    view = box.get_dofs_velocity(copy=False)
    before = view.clone()
    scene.step()
    assert not same(view, before) and same(view, box.get_dofs_velocity())
    assert view.data_ptr() == box.get_dofs_velocity(copy=False).data_ptr()


def check_snapshot_is_independent(scene, box):
    for name in ("get_dofs_position", "get_pos", "get_links_quat", "get_qpos"):
        getter = getattr(box, name)
        for args in ((), (None, [0, 1])) if name != "get_pos" else ((), ([0, 1],)):
            snapshot = getter(*args)
            wanted = snapshot.clone()
            snapshot += 1
            assert same(getter(*args), wanted), name
    before = box.get_dofs_velocity()
    kept = before.clone()
    scene.step()
    assert same(before, kept)


def check_writing_to_a_view_sets_the_state(_scene, box):
    box.get_dofs_velocity(copy=False)[:] = 0.25
    assert bool((box.get_dofs_velocity() == 0.25).all())
    assert bool((box.solver.dofs_state.vel.to_numpy() == 0.25).all())
    box.set_dofs_velocity(torch.zeros((N_ENVS, 6)))
    assert not box.get_dofs_velocity(copy=False).any()


def check_every_stored_getter_has_a_view(_scene, box):
    from genesis.utils import zero_copy  # pylint: disable=import-outside-toplevel

    names = {"entity": zero_copy.STORED_OF_ENTITY, "solver": zero_copy.STORED_OF_SOLVER}
    for owner, kind in ((box, "entity"), (box.solver, "solver")):
        for name in names[kind]:
            getter = getattr(owner, name)
            views, snapshots = getter(copy=False), getter()
            if isinstance(views, torch.Tensor):
                views, snapshots = (views,), (snapshots,)
            for view, snapshot in zip(views, snapshots):
                assert same(view, snapshot) and view.data_ptr() != snapshot.data_ptr(), name


def check_computed_values_have_no_view(_scene, box):
    for name in ("get_vel", "get_links_vel", "get_links_acc", "get_dofs_control_force"):
        refused(lambda name=name: getattr(box, name)(copy=False), "computes its values")
        assert getattr(box, name)(copy=True).shape[0] == N_ENVS


def check_indices_of_a_view(_scene, box):
    whole = box.get_dofs_position(copy=False)
    for index in (slice(1, 4), [1, 2, 3], range(0, 6, 2), torch.tensor([0, 3]), torch.tensor([2], dtype=torch.int32)):
        plain = index.tolist() if isinstance(index, torch.Tensor) else index
        view = box.get_dofs_position(index, copy=False)
        assert same(view, whole[:, plain])
        assert view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert same(box.get_dofs_position(2, copy=False), whole[:, 2:3])
    assert same(box.get_dofs_position(None, 1, copy=False), whole[1:2])
    refused(lambda: box.get_dofs_position([0, 1, 3], copy=False), "equal distances")
    refused(lambda: box.get_dofs_position([2, 1], copy=False), "equal distances")
    refused(lambda: box.get_dofs_position([0, 99], copy=False), "out-of-range")
    refused(lambda: box.get_dofs_position(99, copy=False), "out-of-range")
    # Genesis indexes this one itself.
    refused(lambda: box.solver.get_mass_mat(torch.tensor([0, 1, 2]), copy=False), "cannot share")


def check_a_view_can_be_given_to_its_own_setter(_scene, box):
    gains = box.get_dofs_kp(copy=False)
    before = gains.clone()
    gains += 1.0
    box.set_dofs_kp(gains)
    assert same(box.get_dofs_kp(), before + 1.0)
    box.set_dofs_kp(before)


def check_degrees_of_freedom_that_are_no_plain_numbers(_scene, box):
    value = torch.full((N_ENVS, 1), 0.25)
    for dofs in ([np.array(5)], [np.int64(5)], [5]):
        box.control_dofs_force(value, dofs)
        assert (box.solver.dofs_state.ctrl_force.to_numpy()[5] == 0.25).all()
        box.control_dofs_force(0 * value, dofs)


def check_inference_mode_leaves_no_mark(scene, _box):
    field = scene.rigid_solver.dofs_state.force
    with torch.inference_mode():
        view = misc.ti_field_to_torch(field, transpose=True, copy=False)
        assert misc.ti_field_to_torch(field, transpose=True).is_inference()
    view += 0.0
    assert not misc.ti_field_to_torch(field, transpose=True).is_inference()


def check_gradients_leave_no_mark(_scene, box):
    value = torch.full((N_ENVS, 6), 0.5, requires_grad=True)
    box.get_dofs_velocity(copy=False).copy_(value)
    box.get_dofs_velocity(slice(0, 2), copy=False).copy_(value[:, :2])
    assert not box.get_dofs_velocity().requires_grad and not box.get_dofs_velocity(copy=False).requires_grad
    box.control_dofs_force(value)
    assert not box.solver.dofs_state.ctrl_force.to_torch(copy=False).requires_grad


def check_threads_see_the_same(_scene, box):
    wanted, wrong = box.get_links_pos(), []

    def read():
        for _ in range(200):
            if not (same(box.get_links_pos(), wanted) and same(box.get_links_pos(copy=False), wanted)):
                wrong.append(threading.get_ident())
                return

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def check_view_cached_on_its_field_is_collected(_scene, _box):
    field = ti.field(ti.f32, (4, 2))
    field.view = misc.ti_field_to_torch(field, transpose=True, copy=False)
    gone = weakref.ref(field)
    del field
    gc.collect()
    assert gone() is None


def check_monkeypatched_names_work(scene, _box):
    from taichi._kernels import matrix_to_ext_arr, tensor_to_ext_arr  # pylint: disable=import-outside-toplevel

    for kernel in (tensor_to_ext_arr._primal, matrix_to_ext_arr._primal):
        assert all(
            hasattr(kernel, name) for name in ("func", "mapper", "arguments", "ensure_compiled", "launch_kernel")
        )
    program = ti.lang.impl.get_runtime().prog
    assert all(hasattr(program, name) for name in ("compile_kernel", "launch_kernel", "config", "get_device_caps"))
    stock = misc.ti_field_to_torch.__wrapped__
    state = scene.rigid_solver.links_state
    for field in (state.pos, state.cd_ang, scene.rigid_solver.dofs_state.pos, scene.rigid_solver.dofs_info.limit):
        for _ in range(3):
            assert same(stock(field, transpose=True), misc.ti_field_to_torch(field, transpose=True))


def check_views_survive_reset(scene, box):
    view = box.get_dofs_position(copy=False)
    scene.step()
    scene.reset()
    assert same(view, box.get_dofs_position())
    scene.step()
    assert same(view, box.get_dofs_position())


def check_views_survive_rebuilding(_scene, box):
    views = [(box.get_links_pos(copy=False), box.get_links_pos())]
    for number in range(REBUILDS):
        scene, other = build(n_envs=number % 3, height=0.2 + 0.1 * number)
        view = other.get_links_pos(copy=False)
        assert same(view, other.get_links_pos())
        views.append((view, view.clone()))
        gs.global_scene_list.discard(scene)
        del scene, other
        gc.collect()
    assert all(same(view, kept) for view, kept in views)


def check_views_survive_destroy(_scene, box):
    view = box.get_dofs_position(copy=False)
    kept = view.clone()
    box.control_dofs_force(torch.zeros((N_ENVS, 6)))
    runtime = ti.lang.impl.get_runtime()
    gs.destroy()
    assert not hasattr(runtime, "gs_remembered")
    assert same(view, kept)
    for stale in (box.get_dofs_position, lambda: box.get_dofs_position(copy=False)):
        try:
            stale()
        except RuntimeError as error:
            assert "program that ended" in str(error)
            continue
        raise AssertionError("a getter of a scene that is gone returned something")
    gs.init(backend=gs.cpu, logging_level="error")
    field = ti.field(ti.f32, view.shape)
    field.fill(7)
    view += 1
    assert (misc.ti_field_to_torch(field, copy=False) == 7).all() and (field.to_numpy() == 7).all()
    gs.destroy()


def check_switched_off_nothing_is_shared(_scene, _box):
    os.environ["GS_ENABLE_ZEROCOPY"] = "0"
    gs.init(backend=gs.cpu, logging_level="error")
    field = ti.field(ti.f32, (4, 2))
    refused(lambda: misc.ti_field_to_torch(field, copy=False), "GS_ENABLE_ZEROCOPY")
    assert misc.ti_field_to_torch(field, transpose=True).shape == (2, 4)
    assert not hasattr(ti.lang.impl.get_runtime(), "gs_remembered")


def main():
    """Runs the checks in their order; the last ones end the scene."""
    out = Path(sys.argv[1])
    gs.init(backend=gs.cpu, seed=1, logging_level="error")
    require_sharing()
    scene, box = build()
    notes = {}
    for name, check in [(name, thing) for name, thing in globals().items() if name.startswith("check_")]:
        try:
            check(scene, box)
            notes[name] = ""
        except Exception:  # pylint: disable=broad-except
            notes[name] = traceback.format_exc()
        print(name, "failed" if notes[name] else "right", flush=True)
    out.write_text(json.dumps(notes))


if __name__ == "__main__":
    main()
