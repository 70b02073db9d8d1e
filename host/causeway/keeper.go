package main

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/device"
	"causeway/host/sandbox"
)

// keeperEnv is set for the process that becomes the keeper.
const keeperEnv = "CAUSEWAY_KEEPER"

func keeperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "keeper",
		Short:  "Answer a guest whose device process has died (started by device)",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			if kind, err := unix.GetsockoptInt(device.KeeperLinkFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
				return errors.New("`causeway keeper` is started by device, not by users")
			}
			if os.Getenv(keeperEnv) == "" {
				return beget(os.NewFile(device.KeeperLinkFD, "link"), os.NewFile(device.KeeperMemoryFD, "memory"))
			}
			// Whatever ends the device, or its process group, is why this one is there. Who stops
			// all of a unit's processes waits for it.
			signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
			asked := make(chan os.Signal, 1)
			signal.Notify(asked, unix.SIGTERM)
			if os.Getuid() >= sandbox.UIDBase {
				if err := errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
					return err
				}
			}
			runtime.GOMAXPROCS(1)
			debug.SetGCPercent(10) // one for each VM: memory counts
			// A kernel may have no such filters; it serves then without.
			_ = sandbox.OnlyDescriptors()
			return device.Keep(asked, slog.New(slog.DiscardHandler))
		},
	}
}

// beget starts the process that stays, in a session of its own and without this one's streams, and
// leaves it an orphan: nobody waits for it.
func beget(link, memory *os.File) error {
	start := func(as *syscall.Credential) error {
		// Whoever may not search the program's folder can run this.
		c := exec.Command("/proc/self/exe", "keeper")
		c.Env, c.Dir = []string{keeperEnv + "=1"}, "/"
		c.ExtraFiles = []*os.File{link, memory}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as}
		if err := c.Start(); err != nil {
			return err
		}
		return c.Process.Release()
	}
	if os.Getuid() != 0 {
		return start(nil)
	}
	// A user of its own, as workers have: it needs no more than the descriptors that it is given.
	user := uint32(sandbox.UIDBase + os.Getpid())
	if start(&syscall.Credential{Uid: user, Gid: user}) == nil {
		return nil
	}
	return start(nil) // a user namespace may not have it
}
