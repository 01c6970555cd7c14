"""The demo: one Taichi simulation and one torch network, with copies and without."""
