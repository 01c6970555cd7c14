"""What is measured, and at which sizes. No library is imported here.

A measure compares the statement of side "ours" with that of side "reference"; both are timed in the same process,
unless only another environment has the reference.
"""

from dataclasses import dataclass, replace
from typing import Optional

OURS = "ours"
REFERENCE = "reference"
# Further references of the copies, which nothing is held to.
IN_PLACE = "in place"
CLONE = "clone"

KB, MB, GB = 10**3, 10**6, 10**9
ITEM_SIZE = 4  # all arrays have elements of type f32

# The wheels, in the order of the tables. Every other environment is a peer.
WHEELS = ("source", "fast")


@dataclass(frozen=True)
class Measure:
    """One line of the tables.

    Attributes:
        name: The key, in files.
        ours: What side "ours" does, for people.
        reference: What side "reference" does, for people.
        limit: The entry of limits.json that holds the wanted ratio.
        limit_at_1_kb: The entry for 1 kB, where it differs.
    """

    name: str
    ours: str
    reference: str
    limit: str
    limit_at_1_kb: Optional[str] = None

    def limit_at(self, size):
        """The entry of limits.json for a size in bytes."""
        return self.limit_at_1_kb if self.limit_at_1_kb and size == KB else self.limit


EXCHANGE = (
    Measure("export_torch", "torch.from_dlpack(nd)", "torch.from_dlpack(NumPy array)", "export_torch"),
    Measure("capsule", "nd.\\_\\_dlpack\\_\\_(max_version=(1, 0))", "the same of a NumPy array", "capsule"),
    Measure("import_torch", "ti.from_dlpack(tensor)", "torch.from_dlpack(tensor)", "import_torch"),
    Measure("export_tvm", "tvm_ffi.from_dlpack(nd)", "tvm_ffi.from_dlpack(tensor)", "export_tvm"),
    Measure("field_torch", "torch.from_dlpack(field)", "torch.from_dlpack(nd)", "field_torch"),
    Measure("launch", "kernel(imported ndarray)", "kernel(native ndarray)", "launch"),
)
FIELD_QUADRANTS = Measure(
    "field_quadrants", "torch.from_dlpack(field)", "Quadrants' field.to_torch(copy=False)", "field_quadrants"
)
COPIES = (
    Measure("nd_to_numpy", "nd.to_numpy()", "a copy of the same bytes", "copy", "copy_at_1_kb"),
    Measure("nd_to_torch", "nd.to_torch()", "a copy of the same bytes", "copy", "copy_at_1_kb"),
    Measure("field_to_numpy", "field.to_numpy()", "a copy of the same bytes", "copy", "copy_at_1_kb"),
    Measure("field_to_torch", "field.to_torch()", "a copy of the same bytes", "copy", "copy_at_1_kb"),
)
SHARING = EXCHANGE + (FIELD_QUADRANTS,)
COMPARED = SHARING + COPIES
# The entry of limits.json for the cost at the largest size over that at 1 kB.
GROWTH = "growth"

# These two compare more than two sides, each with a label of its own.
LATENCY = "latency"
RL = "rl"
LATENCY_FLOOR = "NumPy to torch"
RL_COPYING, RL_SHARING, RL_ANEW = "copying", "shared once", "shared anew each step"


@dataclass(frozen=True)
class Plan:
    """What one run measures: sizes in bytes, numbers of environments, and how long.

    Attributes:
        sample_seconds: How long one sample takes, about.
        rounds: How many samples each case gets.
        passes: So many times more samples get those that share, which are short.
        seconds: After this time no further round begins.
    """

    exchange_sizes: tuple
    copy_sizes: tuple
    environments: tuple
    sample_seconds: float
    rounds: int
    passes: int
    seconds: float


FULL = Plan((KB, MB, 100 * MB, GB), (KB, MB, 10 * MB, 100 * MB), (1, 16, 64, 256, 1024, 4096), 0.005, 50, 3, 600)
QUICK = Plan((KB, GB), (KB, MB, 10 * MB), (1, 256), 0.003, 20, 2, 35)
CUDA = Plan(FULL.exchange_sizes, FULL.copy_sizes, FULL.environments, 0.005, 50, 3, 200)
PLANS = {"full": FULL, "quick": QUICK, "cuda": CUDA}


def without_sizes_over(plan, largest):
    """The plan without its larger sizes, for a machine with little memory."""
    kept = (tuple(size for size in sizes if size <= largest) for sizes in (plan.exchange_sizes, plan.copy_sizes))
    return replace(plan, **dict(zip(("exchange_sizes", "copy_sizes"), kept)))


def size_name(size):
    """A size in bytes, for people."""
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "kB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
