package driver

import "fmt"

// Reach says how a device's kernels come to address all memory of the process that opened it,
// whether or not it was given to them.
type Reach string

// Reaches.
const (
	ReachNone Reach = ""    // they do not
	ReachHMM  Reach = "HMM" // the driver fetches any page that a kernel touches
	ReachATS  Reach = "ATS" // the device uses the process's own page tables
)

// Remedy is how it is ended, for those who administer the host.
func (r Reach) Remedy() string {
	switch r {
	case ReachHMM:
		return "load nvidia_uvm with uvm_disable_hmm=1 (`echo options nvidia_uvm uvm_disable_hmm=1 > /etc/modprobe.d/causeway.conf`, then load it anew or reboot)"
	case ReachATS:
		return "load nvidia_uvm with uvm_ats_mode=0 uvm_disable_hmm=1 (a line of /etc/modprobe.d; HMM takes the place of ATS else), then reboot"
	}
	return ""
}

// ReachError says that a device's kernels could read and write all memory of the worker, not only
// what is the session's.
type ReachError struct {
	Device string // its name
	Reach  Reach
}

func (e *ReachError) Error() string {
	return fmt.Sprintf("kernels on %s can address all memory of a worker (%s): %s, or permit it with --kernels-reach-worker (isolation.kernels_reach_worker)",
		e.Device, e.Reach, e.Reach.Remedy())
}
