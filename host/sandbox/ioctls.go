package sandbox

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A worker talks to a GPU's kernel module by ioctl(2). Which requests its driver makes is known for
// each branch of the driver, from lists in ioctls/. The filter sees a request's number, not what
// its argument points to, nor which device it is for.

//go:embed ioctls/*.list
var ioctlFiles embed.FS

// Ioctls says when requests that are in no list are denied.
type Ioctls string

// When.
const (
	// In mode strict; in mode on where the list of this driver was confirmed on a GPU.
	IoctlsAuto    Ioctls = "auto"
	IoctlsEnforce Ioctls = "enforce" // always; a driver without a list is refused
	// Never: they are written down and counted, by a process beside each worker.
	IoctlsAudit Ioctls = "audit"
	IoctlsPass  Ioctls = "pass" // never
)

// ParseIoctls reads an Ioctls as people write it.
func ParseIoctls(s string) (Ioctls, error) {
	switch v := Ioctls(s); v {
	case IoctlsAuto, IoctlsEnforce, IoctlsAudit, IoctlsPass:
		return v, nil
	}
	return "", fmt.Errorf("%q says nothing of ioctls: use auto, enforce, audit or pass", s)
}

// ErrNoIoctls says that nobody knows which requests a driver makes.
var ErrNoIoctls = errors.New("no list of its ioctls: learn one with scripts/ioctls.sh, or use --ioctls audit or pass")

// ioctlRequest is what a list's line lets through, and what audit counts: a request without its
// direction.
type ioctlRequest struct {
	kind, number uint32
	size         int // -1: any
}

// requestOf takes a request apart, as the kernel's _IOC macros do.
func requestOf(request uint32) ioctlRequest {
	return ioctlRequest{kind: request >> 8 & 0xff, number: request & 0xff, size: int(request >> 16 & 0x3fff)}
}

// bits are what a request has in common with others of its line, and which bits count.
func (r ioctlRequest) bits() (value, mask uint32) {
	value, mask = r.kind<<8|r.number, 0xffff
	if r.size >= 0 {
		value, mask = value|uint32(r.size)<<16, 0x3fffffff
	}
	return value, mask
}

// String is a request as lists write it.
func (r ioctlRequest) String() string {
	kind, size := strconv.Itoa(int(r.kind)), "*"
	if r.kind > ' ' && r.kind < 0x7f {
		kind = string(rune(r.kind))
	}
	if r.size >= 0 {
		size = strconv.Itoa(r.size)
	}
	return fmt.Sprintf("%s %d %s", kind, r.number, size)
}

// ioctlList is what a driver's workers may ask.
type ioctlList struct {
	confirmed bool // on a GPU
	requests  []ioctlRequest
}

// Requests that golang.org/x/sys does not name (asm-generic/ioctls.h).
const (
	fioNonblock  = 0x5421 // FIONBIO
	fioNoExec    = 0x5450 // FIONCLEX
	fioCloseExec = 0x5451 // FIOCLEX
)

// plainIoctls are those of files, pipes and sockets that libc and Go's runtime make, with any
// driver and with none.
func plainIoctls() []ioctlRequest {
	var out []ioctlRequest
	for _, r := range []uint32{unix.TCGETS, unix.TIOCGWINSZ, unix.TIOCINQ, fioNonblock, fioCloseExec, fioNoExec} {
		out = append(out, requestOf(r))
	}
	return out
}

// ioctlsOf is the list of a branch of the driver.
func ioctlsOf(branch string) (*ioctlList, error) {
	if branch == "" {
		return nil, fmt.Errorf("the driver does not tell its version: %w", ErrNoIoctls)
	}
	b, err := ioctlFiles.ReadFile("ioctls/" + branch + ".list")
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("driver %s: %w", branch, ErrNoIoctls)
	}
	if err != nil {
		return nil, err
	}
	l, err := parseIoctls(string(b))
	if err != nil {
		return nil, fmt.Errorf("list of driver %s: %w", branch, err)
	}
	return l, nil
}

// parseIoctls reads a list.
func parseIoctls(text string) (*ioctlList, error) {
	l := new(ioctlList)
	n, status := 0, false
	for line := range strings.Lines(text) {
		n++
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "status" && len(f) == 2 && (f[1] == "confirmed" || f[1] == "unconfirmed"):
			l.confirmed, status = f[1] == "confirmed", true
		case len(f) >= 3:
			r, err := parseIoctl(f)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			l.requests = append(l.requests, r)
		default:
			return nil, fmt.Errorf("line %d: %q is not type, number and size", n, strings.TrimSpace(line))
		}
	}
	if !status {
		return nil, errors.New("no status")
	}
	return l, nil
}

func parseIoctl(f []string) (r ioctlRequest, err error) {
	if len(f[0]) == 1 && (f[0] < "0" || f[0] > "9") {
		r.kind = uint32(f[0][0])
	} else if kind, err := strconv.ParseUint(f[0], 10, 8); err == nil {
		r.kind = uint32(kind)
	} else {
		return r, fmt.Errorf("type %q", f[0])
	}
	number, err := strconv.ParseUint(f[1], 10, 8)
	if err != nil {
		return r, fmt.Errorf("number %q", f[1])
	}
	r.number, r.size = uint32(number), -1
	if f[2] != "*" {
		size, err := strconv.ParseUint(f[2], 10, 14)
		if err != nil {
			return r, fmt.Errorf("size %q", f[2])
		}
		r.size = int(size)
	}
	return r, nil
}

// driverBranch is the branch of the machine's NVIDIA driver, as 580; "" if it does not tell. root
// is "/" but for tests.
func driverBranch(root string) string {
	b, err := os.ReadFile(filepath.Join(root, "sys/module/nvidia/version"))
	if err != nil {
		return ""
	}
	branch, _, ok := strings.Cut(strings.TrimSpace(string(b)), ".")
	if _, err := strconv.ParseUint(branch, 10, 16); !ok || err != nil {
		return ""
	}
	return branch
}

// verbsIoctl is the one request of RDMA devices, RDMA_VERBS_IOCTL of rdma/rdma_user_ioctl.h: what
// it asks for stands in memory.
var verbsIoctl = ioctlRequest{kind: 0x1b, number: 1, size: 24}

// mayAsk are the requests that strict lets through; nil: nobody knows.
func (p *Policy) mayAsk() ([]ioctlRequest, error) {
	list := plainIoctls()
	if p.Fabric {
		list = append(list, verbsIoctl)
	}
	if !p.Real {
		return list, nil
	}
	l, err := ioctlsOf(p.Driver)
	if err != nil {
		return nil, err
	}
	return append(list, l.requests...), nil
}

// ioctlsHeld reports whether other requests are denied, or, in mode audit, written down. why says
// why not.
func (p *Policy) ioctlsHeld() (held bool, why string, err error) {
	if !p.Real || p.Mode == Audit {
		return true, "", nil
	}
	switch p.Ioctls {
	case IoctlsPass:
		return false, "asked for", nil
	case IoctlsAudit:
		return false, "they are written down", nil
	}
	l, err := ioctlsOf(p.Driver)
	switch {
	case p.Ioctls == IoctlsEnforce || p.Mode == Strict:
		return err == nil, "", err
	case err != nil:
		return false, err.Error(), nil
	case !l.confirmed:
		return false, "the list for driver " + p.Driver + " is not confirmed on a GPU: mode strict and --ioctls enforce use it all the same", nil
	}
	return true, "", nil
}

// ioctlChecks are the filter's, in order: the first whose verdict is not to go on decides.
func (p *Policy) ioctlChecks() []check {
	list := []check{never(1, terminalIoctls...)}
	held, _, err := p.ioctlsHeld()
	if err != nil || !held {
		return list // New has refused the one and said the other
	}
	requests, err := p.mayAsk()
	if err != nil {
		return list // audit of a driver that nobody knows: every request is written down
	}
	return append(list, others(requests, verdictDeny)...)
}

// others is what becomes of requests that are not in a list.
func others(requests []ioctlRequest, verdict uint32) []check {
	var list []check
	for _, mask := range []uint32{0xffff, 0x3fffffff} {
		c := check{arg: 1, mask: mask, match: verdictPass, other: verdictAllow}
		for _, r := range requests {
			if value, m := r.bits(); m == mask && !slices.Contains(c.values, value) {
				c.values = append(c.values, value)
			}
		}
		if len(c.values) > 0 {
			list = append(list, c)
		}
	}
	return append(list, check{arg: 1, match: verdict, other: verdict})
}

// ioctlsWatched reports whether requests that are in no list are written down while all else is
// enforced.
func (p *Policy) ioctlsWatched() bool {
	return p.Real && p.Ioctls == IoctlsAudit && (p.Mode == On || p.Mode == Strict)
}

// watch is the filter of that: what is in no list asks an auditor.
func (p *Policy) watch() *program {
	requests, err := p.mayAsk()
	if err != nil {
		requests = plainIoctls() // a driver that nobody knows
	}
	return &program{verdicts: map[uint32]uint32{}, rest: verdictAllow, beyond: verdictAllow, checks: map[uint32][]check{
		unix.SYS_IOCTL: others(requests, verdictNotify),
	}}
}

// lets reports whether a list has a request.
func lets(list []ioctlRequest, request uint32) bool {
	return slices.ContainsFunc(list, func(r ioctlRequest) bool {
		value, mask := r.bits()
		return request&mask == value
	})
}
