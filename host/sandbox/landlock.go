package sandbox

import (
	"errors"
	"fmt"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// What versions of Landlock's ABI added, as far as it is missed: Linux 5.13, 5.19, 6.2, 6.7, 6.10,
// 6.12.
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
func rights(may access) (a uint64) {
	for _, r := range []struct {
		may access
		fs  uint64
	}{
		{read, ll.AccessFSReadFile | ll.AccessFSReadDir},
		{write, ll.AccessFSWriteFile},
		{truncate, ll.AccessFSTruncate},
		{execute, ll.AccessFSExecute},
		{create, ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSRemoveFile | ll.AccessFSRemoveDir},
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

// handled is all that a version of the ABI can deny: what no rule grants is denied. (landlock(7);
// newer versions only add.)
func handled(abi int) *ll.RulesetAttr {
	a := &ll.RulesetAttr{HandledAccessFS: 1<<13 - 1}
	for _, v := range []struct {
		abi             int
		fs, net, scopes uint64
	}{
		{abi: 2, fs: ll.AccessFSRefer}, {abi: 3, fs: ll.AccessFSTruncate}, {abi: 4, net: ll.AccessNetBindTCP | ll.AccessNetConnectTCP},
		{abi: 5, fs: ll.AccessFSIoctlDev}, {abi: 6, scopes: ll.ScopeAbstractUnixSocket | ll.ScopeSignal}, {abi: 9, fs: ll.AccessFSResolveUnix},
		{abi: 10, net: ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP},
	} {
		if abi >= v.abi {
			a.HandledAccessFS |= v.fs
			a.HandledAccessNet |= v.net
			a.Scoped |= v.scopes
		}
	}
	return a
}

// ruleset makes a ruleset: files by rules, and where the kernel can, no TCP, UDP, signals and
// abstract sockets outside. The caller closes the descriptor. A rule whose path is missing grants
// nothing.
func ruleset(p *Policy, rules []rule) (int, error) {
	abi := landlockABI()
	if abi == 0 {
		return -1, errNoLandlock
	}
	attr := handled(abi)
	if p.Network {
		attr.Scoped &^= ll.ScopeAbstractUnixSocket
	}
	set, err := ll.LandlockCreateRuleset(attr, 0)
	if err != nil {
		return -1, fmt.Errorf("landlock_create_ruleset: %w", err)
	}
	for _, r := range rules {
		if err := grant(set, attr, r); err != nil {
			_ = unix.Close(set)
			return -1, err
		}
	}
	return set, nil
}

func grant(set int, attr *ll.RulesetAttr, r rule) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}
	a := rights(r.may) & attr.HandledAccessFS
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		a &= fileRights
	}
	if a == 0 {
		return nil
	}
	if err := ll.LandlockAddPathBeneathRule(set, &ll.PathBeneathAttr{AllowedAccess: a, ParentFd: fd}, 0); err != nil {
		return fmt.Errorf("landlock rule for %s: %w", r.path, err)
	}
	return nil
}

// restrictFiles applies the rules of a policy to all threads for good.
func restrictFiles(p *Policy, self string) error {
	set, err := ruleset(p, p.rules(self))
	if err != nil {
		return err
	}
	defer unix.Close(set)
	if err := ll.AllThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := ll.AllThreadsLandlockRestrictSelf(set, 0); err != nil {
		return fmt.Errorf("landlock_restrict_self: %w", err)
	}
	return partly()
}

// partly is an error where the kernel's Landlock leaves holes.
func partly() error {
	if abi := landlockABI(); abi < landlockWanted {
		return fmt.Errorf("version %d of %d of Landlock: %w", abi, landlockWanted, errPartly)
	}
	return nil
}

// errPartly: a layer is there, but with holes that other layers must stop.
var errPartly = errors.New("an older kernel's, which leaves signals or TCP to the other layers")
