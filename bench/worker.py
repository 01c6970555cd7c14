"""A process that times the cases of one environment, one sample each time it is asked.

    python -m bench.worker ENVIRONMENT ARCH PLAN        # a Plan as JSON

It reads a JSON object a line from its standard input and answers each with one: first what it can measure, then the
time of one sample for each `{"case": number}`. In between it waits for the next line, and needs no processor.
"""

import importlib
import json
import os
import sys

from bench import genesis_measures, measures


class Answers:
    """The pipe to the conductor. What libraries print goes to standard error, the log, instead."""

    def __init__(self):
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, answer):
        """Writes one answer."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()


class Cases:
    """All cases of an environment, in the order in which they were made."""

    def __init__(self, environment, plan):
        self.environment = environment
        self.plan = plan
        self.entries = []
        self.left_out = []
        self._cases = []

    def add(self, measure, size, make, what=None):
        """Adds the cases of one group; a group that cannot be made is left out with its reason.

        Args:
            measure: The name of the measure.
            size: Bytes, or the number of environments.
            make: Gives a dict from side to Case.
            what: A name for people, where the measure's does not tell enough.
        """
        try:
            made = make()
            for case in made.values():
                case.calibrate(self.plan.sample_seconds)
        except Exception as error:  # whatever a library raises, the others go on
            self.leave_out(f"{what or measure} at {size}", f"{type(error).__name__}: {error}")
            return
        for side, case in made.items():
            entry = {"measure": measure, "size": size, "side": side, "statement": case.statement, "loops": case.loops}
            self.entries.append(entry)
            self._cases.append(case)

    def leave_out(self, what, why):
        """Notes what is not measured."""
        self.left_out.append({"what": what, "why": " ".join(why.split())})

    def sample(self, number):
        """The time of one run of a case, in seconds."""
        return self._cases[number].sample()


def serve(cases, facts, answers):
    """Says what can be measured, then measures on request, until the conductor closes the pipe."""
    answers.send({"entries": cases.entries, "left_out": cases.left_out, "facts": facts})
    for line in sys.stdin:
        answers.send({"seconds": cases.sample(json.loads(line)["case"])})


def module_of(environment):
    """Which cases an environment runs: those of Taichi if it is a wheel of ours, of Genesis, or of the peer."""
    if environment in measures.WHEELS:
        return "taichi"
    return "genesis" if environment in genesis_measures.ENVIRONMENTS else environment


def main():
    environment, arch, plan = sys.argv[1:]
    answers = Answers()
    cases = Cases(environment, measures.Plan(**json.loads(plan)))
    try:
        facts = importlib.import_module(f"bench.cases_{module_of(environment)}").prepare(cases, arch)
    except Exception as error:
        answers.send({"failed": f"{type(error).__name__}: {error}"})
        raise
    serve(cases, facts, answers)


if __name__ == "__main__":
    main()
