package sandbox

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// What versions of Landlock's ABI added, as far as it is missed: Linux 5.13, 5.19, 6.2, 6.7, 6.10, 6.12.
const landlockWanted = 6

// landlockABI is the kernel's version of Landlock; 0: none.
func landlockABI() int {
	v, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return v
}

var errNoLandlock = errors.New("the kernel has no Landlock, or lsm= leaves it out")

// rights turns a rule's access into Landlock's.
func rights(may access) landlock.AccessFSSet {
	var a landlock.AccessFSSet
	for _, r := range []struct {
		may access
		fs  landlock.AccessFSSet
	}{
		{read, ll.AccessFSReadFile | ll.AccessFSReadDir},
		{write, ll.AccessFSWriteFile},
		{execute, ll.AccessFSExecute},
		{create, ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSRemoveFile | ll.AccessFSRemoveDir | ll.AccessFSTruncate},
		{ioctl, ll.AccessFSIoctlDev},
	} {
		if may&r.may != 0 {
			a |= r.fs
		}
	}
	return a
}

// fileRights are those that make sense for what is no folder; the kernel refuses the others there.
const fileRights = ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSExecute | ll.AccessFSTruncate | ll.AccessFSIoctlDev

// restrictFiles applies rules to all threads for good: files, and where the kernel can, TCP, UDP, signals and abstract sockets.
// A rule whose path is missing grants nothing.
func restrictFiles(rules []rule) error {
	abi := landlockABI()
	if abi == 0 {
		return errNoLandlock
	}
	opts := make([]landlock.Rule, 0, len(rules))
	for _, r := range rules {
		var st unix.Stat_t
		if unix.Stat(r.path, &st) != nil {
			continue
		}
		a := rights(r.may)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			a &= fileRights
		}
		opts = append(opts, landlock.PathAccess(a, r.path).IgnoreIfMissing())
	}
	if err := landlock.V11.BestEffort().Restrict(opts...); err != nil {
		return err
	}
	if abi < landlockWanted {
		return fmt.Errorf("version %d of %d of Landlock: %w", abi, landlockWanted, errPartly)
	}
	return nil
}

// errPartly: a layer is there, but with holes that other layers must stop.
var errPartly = errors.New("an older kernel's, which leaves signals or TCP to the other layers")
