# `make VERB` is `./build.sh VERB`. Options: make wheel OPTIONS="--system-deps".
VERBS := apply bench bench-cuda bump check clean demo export fuzz lint sanitize soak test test-cpp test-cpu test-cuda test-cuda-sim valgrind wheel wheel-fast

help:
	@./build.sh help

$(VERBS):
	@./build.sh $@ $(OPTIONS)

.PHONY: help $(VERBS)
