# Short names for scripts/dev, which does the work. Plain enough for the make that macOS has (3.81).
.PHONY: help demo test test-others test-all lint bench clean
.NOTPARALLEL:

help demo test test-others lint bench clean:
	@./scripts/dev $@ $(ARGS)

test-all: test-others test
