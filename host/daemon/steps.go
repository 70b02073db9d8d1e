package daemon

// Steps of a vGPU's start and end, and of a VM's migration, behind each of which causewayd may end
// at any time.
const (
	stepIntent    = "the intent is written"
	stepStarted   = "the process is started"
	stepNamed     = "the record names the process"
	stepBegun     = "the process may begin"
	stepAnswered  = "the process has answered"
	stepReady     = "the record says that it is ready"
	stepEnding    = "it is to end"
	stepEnded     = "the process has ended"
	stepSwept     = "its files are removed"
	stepForgotten = "its record is removed"

	// At the host to which a VM may come, whose vGPU is started for it as any.
	stepComes = "memory comes ahead of the VM"
	// At the host of a VM whose GPU is on a server.
	stepPromised = "the server lets another host take the lease over"
	stepReadied  = "the other host is ready"
	stepHanded   = "the device process gives out what the other host needs"
	stepBeside   = "two leases are written"
	stepDiverted = "the programs have moved, or not"
	stepKept     = "the lease that is kept is written"
)

func (d *Daemon) reached(name string) {
	if d.opt.step != nil {
		d.opt.step(name)
	}
}
