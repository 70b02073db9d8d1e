package daemon

// Steps of a vGPU's start and end, behind each of which causewayd may end at any time.
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
)

func (d *Daemon) reached(name string) {
	if d.opt.step != nil {
		d.opt.step(name)
	}
}
