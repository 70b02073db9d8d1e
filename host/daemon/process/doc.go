// Package process starts, finds again, watches and ends processes that outlive whoever started
// them: a vGPU's device process and the scheduler.
//
// A process is named by its id and the time it started (field 22 of /proc/PID/stat, proc(5)): ids
// come again, the pair does not until the host boots. All that is done to it goes through a pidfd,
// so no signal ever meets a stranger. One goroutine per Process waits for its end, parked in the
// runtime's poller; no thread is held.
package process
