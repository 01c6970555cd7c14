"""Generates the orders of events in the life of shared memory, and the sample of them that a short run takes."""

import itertools
import os
import random

MAX_LENGTH = 6

# What needs no view; then, for each library that takes a view, what it adds.
COMMON_STEPS = ("drop_owner", "reset", "init_again", "init_other", "read", "write")
EXIT = "exit"


def steps_of(consumers):
    """All steps but exit, for orders in which these libraries take views."""
    steps = list(COMMON_STEPS)
    for name in consumers:
        steps += [f"export:{name}", f"drop_view:{name}"]
    return steps


def makes_sense(order):
    """Whether each step of an order can be taken where it stands.

    The story starts with a running Taichi and one ndarray, its owner. Then:

    - exit is the last step, and only that: every process ends once;
    - export needs an owner of the running program, and no view in that library: a library has at most one at a time,
      and may take another when it has dropped it;
    - drop owner needs an owner, also one whose program is gone;
    - reset needs a running program; init is always allowed, and ends the program that runs;
    - read, write and drop view need a view;
    - an order without any view says nothing about sharing.
    """
    owner, owner_works, running, views, exports = True, True, True, set(), 0
    for step in order[:-1]:
        action, _, name = step.partition(":")
        allowed = {
            "export": owner and owner_works and name not in views,
            "drop_owner": owner,
            "reset": running,
            "init_again": True,
            "init_other": True,
            "read": bool(views),
            "write": bool(views),
            "drop_view": name in views,
        }
        if not allowed.get(action, False):
            return False
        if action == "export":
            views.add(name)
            exports += 1
        elif action == "drop_view":
            views.remove(name)
        elif action == "drop_owner":
            owner = False
        elif action not in ("read", "write"):
            running, owner_works = action != "reset", False
    return exports > 0 and order[-1] == EXIT


def all_orders(consumers, max_length=MAX_LENGTH):
    """Every order that makes sense, of 2 to `max_length` steps, exit included; the short ones first."""
    steps = steps_of(consumers)
    for length in range(1, max_length):
        for head in itertools.product(steps, repeat=length):
            order = head + (EXIT,)
            if makes_sense(order):
                yield order


def seed():
    """What picks the sample: TI_LIFETIME_SEED, default 0."""
    return int(os.environ.get("TI_LIFETIME_SEED", "0"))


def is_full():
    """Whether all orders run: TI_LIFETIME_FULL=1."""
    return os.environ.get("TI_LIFETIME_FULL", "0") == "1"


def sample(orders, count):
    """`count` of the orders, the same for the same seed: a third are the shortest, the others of any length."""
    if len(orders) <= count:
        return list(orders)
    shortest = count // 3
    return orders[:shortest] + random.Random(seed()).sample(orders[shortest:], count - shortest)
