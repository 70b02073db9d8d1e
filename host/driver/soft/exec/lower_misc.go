package exec

// lowerTrap lowers trap and brkpt, which without a debugger ends the kernel
// too.
func lowerTrap(l *lowerer) error {
	l.emit(op{fn: opTrap})
	return nil
}

func opTrap(w *warp, _ *op) { w.fault(Trap, "") }

// lowerNanosleep lets the other warps go first; sleeping would only waste the
// core.
func lowerNanosleep(l *lowerer) error {
	l.emit(op{fn: opYield})
	return nil
}

func opYield(w *warp, _ *op) { w.yield = true }
