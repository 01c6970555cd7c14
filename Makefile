# `make VERB` is `./build.sh VERB`. Options: make wheel OPTIONS="--system-deps".
VERBS := apply bench bench-cuda bench-genesis bisect bump check check-master check-variants clean compare-upstream demo \
	export fuzz genesis genesis-check genesis-export genesis-tree genesis-undo lint pr sanitize soak \
	test test-cpp test-cpu test-cuda test-cuda-sim test-genesis valgrind wheel wheel-fast

help:
	@./build.sh help

$(VERBS):
	@./build.sh $@ $(OPTIONS)

.PHONY: help $(VERBS)
