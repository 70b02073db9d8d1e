package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitStatus ends this program as another one ended.
type exitStatus struct {
	code   int
	signal syscall.Signal // non-zero: killed by it
}

func (e exitStatus) Error() string {
	if e.signal != 0 {
		return fmt.Sprintf("program was ended by signal %d (%v)", int(e.signal), e.signal)
	}
	return fmt.Sprintf("program ended with status %d", e.code)
}

func statusOf(e *exec.ExitError) exitStatus {
	if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitStatus{signal: ws.Signal()}
	}
	return exitStatus{code: e.ExitCode()}
}

// now ends the process. It does not return.
func (e exitStatus) now() {
	if e.signal == 0 {
		os.Exit(e.code)
	}
	// The program left the core file, if one was wanted.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	dieBy(e.signal)
	os.Exit(128 + int(e.signal))
}

// forwardSignals passes signals on to a program. They are held from the first call on; the returned
// function starts passing them to p, or with nil ends it all.
func forwardSignals() func(p *os.Process) {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH)
	done := make(chan struct{})
	started := false
	return func(p *os.Process) {
		if p == nil {
			signal.Stop(ch)
			close(done)
			return
		}
		if started {
			return
		}
		started = true
		go func() {
			for {
				select {
				case s := <-ch:
					if !fromTerminal(s) {
						_ = p.Signal(s)
					}
				case <-done:
					return
				}
			}
		}()
	}
}

// fromTerminal says whether the program has had the signal already: keys and window changes go to
// all processes of the foreground group, and the program is in ours.
func fromTerminal(s os.Signal) bool {
	switch s {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH, unix.SIGHUP:
	default:
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
