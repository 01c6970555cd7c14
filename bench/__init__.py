"""The benchmark: what an exchange costs, against the floor and against other libraries.

`measures` says what is measured, `cases_*` how, one module for each environment. `conductor` asks workers, one process
for each environment, for one sample after the other; `results`, `verdicts`, `markdown` and `plots` make of the
samples what docs/benchmarks.md shows.
"""
