"""A 2D MLS-MPM scene: an elastic slab in a box, above a row of jets in the floor.

One step is one MPM substep. Lengths are in box widths, times in seconds. All state lives in
``ti.ndarray``. The scatter to the grid is a serial loop: sums of floats depend on their order,
so threads with atomics would give other bits in every run (and, on a few cores, take longer).
"""

import taichi as ti

JETS = 8
GRID = 64
DX = 1.0 / GRID
DT = 1.0e-3
WALL = 3  # nodes, on each side, where the material sticks
GRAVITY = 10.0
STIFFNESS = 60.0  # Young's modulus over density
POISSON = 0.25
JET_REACH = 0.35  # height over which a jet loses its strength by a factor e
SLAB_CORNER = (0.14, 0.42)  # lower left
SLAB_SIZE = (0.48, 0.16)
SLAB_VELOCITY = (0.6, 0.0)

vec2 = ti.types.vector(2, ti.f32)
mat2 = ti.types.matrix(2, 2, ti.f32)

Vectors = ti.types.ndarray(dtype=vec2, ndim=1)
Matrices = ti.types.ndarray(dtype=mat2, ndim=1)
NodeMasses = ti.types.ndarray(dtype=ti.f32, ndim=2)
NodeMomenta = ti.types.ndarray(dtype=vec2, ndim=2)


@ti.func
def base_node(position):
    """The lower left node of the 3x3 nodes that a particle touches."""
    return ti.cast(position * GRID - 0.5, ti.i32)


@ti.func
def spline(position, base):
    """Quadratic B-spline weights; column ``o`` holds the weights of offset ``o`` per axis."""
    d = position * GRID - ti.cast(base, ti.f32)
    w = ti.Matrix.zero(ti.f32, 2, 3)
    for axis in ti.static(range(2)):
        w[axis, 0] = 0.5 * (1.5 - d[axis]) ** 2
        w[axis, 1] = 0.75 - (d[axis] - 1.0) ** 2
        w[axis, 2] = 0.5 * (d[axis] - 0.5) ** 2
    return w


@ti.func
def kirchhoff_stress(f):
    """Compressible neo-Hookean stress over density, from the deformation gradient."""
    mu = STIFFNESS / (2.0 * (1.0 + POISSON))
    lam = STIFFNESS * POISSON / ((1.0 + POISSON) * (1.0 - 2.0 * POISSON))
    eye = ti.Matrix.identity(ti.f32, 2)
    return mu * (f @ f.transpose() - eye) + lam * ti.log(ti.max(f.determinant(), 0.1)) * eye


@ti.func
def jet_acceleration(node, controls: ti.template()):
    """What the jet under a node adds there; it fades with the height."""
    jet = ti.min(node[0] * JETS // GRID, JETS - 1)
    return controls[jet] * ti.exp(-(node[1] - WALL) * DX / JET_REACH)


@ti.kernel
def place(x: Vectors, v: Vectors, c: Matrices, f: Matrices, columns: int):
    """Put the particles back on their starting lattice, ``columns`` to a row, at rest in shape."""
    for p in x:
        spacing = SLAB_SIZE[0] / columns
        x[p] = vec2(SLAB_CORNER) + (vec2(p % columns, p // columns) + 0.5) * spacing
        v[p] = vec2(SLAB_VELOCITY)
        c[p] = mat2(0.0)
        f[p] = ti.Matrix.identity(ti.f32, 2)


@ti.kernel
def substep(
    x: Vectors, v: Vectors, c: Matrices, f: Matrices, mass: NodeMasses, momentum: NodeMomenta, controls: Vectors
):
    """Advance by ``DT``: particles to grid, forces on the grid, grid to particles."""
    for node in ti.grouped(mass):
        mass[node] = 0.0
        momentum[node] = vec2(0.0)
    ti.loop_config(serialize=True)
    for p in range(x.shape[0]):
        base = base_node(x[p])
        w = spline(x[p], base)
        # Every particle has mass 1 and the stiffness is given over the density, so no volume appears.
        affine = c[p] - DT * 4.0 * GRID * GRID * kirchhoff_stress(f[p])
        for i, j in ti.static(ti.ndrange(3, 3)):
            node = base + ti.Vector([i, j])
            weight = w[0, i] * w[1, j]
            mass[node] += weight
            momentum[node] += weight * (v[p] + affine @ (node * DX - x[p]))
    for node in ti.grouped(mass):
        if mass[node] > 0.0:
            velocity = momentum[node] / mass[node]
            velocity += DT * (jet_acceleration(node, controls) - vec2(0.0, GRAVITY))
            if node.min() < WALL or node.max() > GRID - WALL:
                velocity = vec2(0.0)
            momentum[node] = velocity  # from here on the array holds velocities
    for p in x:
        base = base_node(x[p])
        w = spline(x[p], base)
        velocity = vec2(0.0)
        affine = mat2(0.0)
        for i, j in ti.static(ti.ndrange(3, 3)):
            node = base + ti.Vector([i, j])
            share = w[0, i] * w[1, j] * momentum[node]
            velocity += share
            affine += 4.0 * GRID * GRID * share.outer_product(node * DX - x[p])
        f[p] = (ti.Matrix.identity(ti.f32, 2) + DT * affine) @ f[p]
        c[p] = affine
        v[p] = velocity
        x[p] = ti.math.clamp(x[p] + DT * velocity, 2.0 * DX, 1.0 - 2.0 * DX)


class Scene:
    """The arrays of one scene. ``controls`` is the acceleration of each jet, shape (JETS,) of vec2."""

    def __init__(self, columns, controls):
        rows = round(columns * SLAB_SIZE[1] / SLAB_SIZE[0])
        self.columns = columns
        self.particles = columns * rows
        self.x = ti.Vector.ndarray(2, ti.f32, self.particles)
        self.v = ti.Vector.ndarray(2, ti.f32, self.particles)
        self.controls = controls
        self._c = ti.Matrix.ndarray(2, 2, ti.f32, self.particles)
        self._f = ti.Matrix.ndarray(2, 2, ti.f32, self.particles)
        self._mass = ti.ndarray(ti.f32, (GRID, GRID))
        self._momentum = ti.Vector.ndarray(2, ti.f32, (GRID, GRID))

    def reset(self):
        """Put the slab back to where it starts."""
        place(self.x, self.v, self._c, self._f, self.columns)

    def step(self):
        """Advance by one substep under the present controls."""
        substep(self.x, self.v, self._c, self._f, self._mass, self._momentum, self.controls)
