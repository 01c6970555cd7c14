"""Drops a block of MPM particles and notes their state.

python run_particles.py 100 notes.json
"""

import json
import sys
from pathlib import Path

import genesis as gs

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_scene import require_sharing, note_of  # pylint: disable=wrong-import-position

LOOK_EVERY = 10


def main():
    """Runs the scene, and writes the notes."""
    steps, out = int(sys.argv[1]), Path(sys.argv[2])
    gs.init(backend=gs.cpu, seed=3, logging_level="error")
    require_sharing()
    scene = gs.Scene(
        show_viewer=False,
        sim_options=gs.options.SimOptions(dt=4e-3, substeps=10),
        mpm_options=gs.options.MPMOptions(lower_bound=(-0.5, -0.5, 0.0), upper_bound=(0.5, 0.5, 1.0), grid_density=32),
    )
    block = scene.add_entity(
        material=gs.materials.MPM.Elastic(), morph=gs.morphs.Box(pos=(0.0, 0.0, 0.3), size=(0.1, 0.1, 0.1))
    )
    scene.build(n_envs=2)
    notes = {}
    for step in range(steps):
        scene.step()
        if step % LOOK_EVERY == 0:
            state = block.get_state()
            notes[f"step {step}"] = [note_of(getattr(state, name)) for name in ("pos", "vel", "C", "F", "Jp", "active")]
            notes[f"step {step}: particles"] = note_of(block.get_particles())
    out.write_text(json.dumps(notes))


if __name__ == "__main__":
    main()
