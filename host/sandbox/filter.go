package sandbox

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Verdicts of a filter (seccomp(2)).
const (
	verdictAllow  = unix.SECCOMP_RET_ALLOW
	verdictDeny   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	verdictAbsent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	verdictKill   = unix.SECCOMP_RET_KILL_PROCESS
	verdictNotify = unix.SECCOMP_RET_USER_NOTIF

	// verdictPass is none of the kernel's: it lets a call go on whatever checks follow.
	verdictPass = 0xffffffff
)

// mostValues is how far a conditional jump reaches.
const mostValues = 255

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// check judges an argument's low 32 bits: the arguments in question are ints to the kernel, which
// drops the others.
type check struct {
	arg    int
	mask   uint32 // 0: all bits
	values []uint32
	// verdict of an argument that is one of values (after the mask), and of any other.
	match, other uint32
}

// program is what a filter decides: by number, for some calls by one argument.
type program struct {
	verdicts map[uint32]uint32
	checks   map[uint32][]check // in order; the first whose verdict is not allow decides
	rest     uint32             // of numbers not in verdicts or checks
	beyond   uint32             // of numbers above lastKnown
}

// span is a range of numbers with one fate, up to and including last.
type span struct {
	last uint32
	code []bpf.Instruction
}

// assemble turns a program into a filter: a foreign architecture is fatal, numbers are found by
// bisection.
func (p *program) assemble() ([]bpf.RawInstruction, error) {
	for nr, checks := range p.checks {
		for _, c := range checks {
			if len(c.values) > mostValues {
				return nil, fmt.Errorf("call %d: %d values in one check", nr, len(c.values))
			}
		}
	}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch, SkipTrue: 1},
		bpf.RetConstant{Val: verdictKill},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}
	return bpf.Assemble(append(code, bisect(p.spans())...))
}

func (p *program) spans() []span {
	var out []span
	add := func(last uint32, code []bpf.Instruction) {
		if n := len(out); n > 0 && slices.Equal(out[n-1].code, code) {
			out[n-1].last = last
			return
		}
		out = append(out, span{last, code})
	}
	for nr := uint32(0); nr <= lastKnown; nr++ {
		if checks, ok := p.checks[nr]; ok {
			add(nr, judge(checks))
			continue
		}
		v, ok := p.verdicts[nr]
		if !ok {
			v = p.rest
		}
		add(nr, ret(v))
	}
	add(x32Bit-1, ret(p.beyond))
	add(0xffffffff, ret(verdictKill))
	return out
}

func ret(v uint32) []bpf.Instruction { return []bpf.Instruction{bpf.RetConstant{Val: v}} }

// judge is the code of a call's checks.
func judge(checks []check) []bpf.Instruction {
	var code []bpf.Instruction
	for _, c := range checks {
		code = append(code, bpf.LoadAbsolute{Off: offArgs + 8*uint32(c.arg), Size: 4})
		if c.mask != 0 {
			code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
		}
		// Values that match jump to the second of two ends: other, match. An end that allows goes
		// on to the next check.
		for i, v := range c.values {
			code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(c.values) - i)})
		}
		code = append(code, end(c.other, 1), end(c.match, 0))
	}
	return append(code, ret(verdictAllow)...)
}

// end returns a verdict, or goes on past skip instructions if it allows, to the next check.
func end(v, skip uint32) bpf.Instruction {
	switch v {
	case verdictAllow:
		return bpf.Jump{Skip: skip}
	case verdictPass:
		return bpf.RetConstant{Val: verdictAllow}
	}
	return bpf.RetConstant{Val: v}
}

// bisect finds a number's span.
func bisect(s []span) []bpf.Instruction {
	if len(s) == 1 {
		return s[0].code
	}
	half := len(s) / 2
	low, high := bisect(s[:half]), bisect(s[half:])
	// Conditional jumps reach 255 instructions, others any distance.
	code := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: s[half-1].last, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(low))},
	}
	return append(append(code, low...), high...)
}

func (p *program) set(v uint32, calls ...uint32) {
	for _, nr := range calls {
		p.verdicts[nr] = v
	}
}

// only lets a call pass with some values of an argument.
func only(arg int, values ...uint32) check {
	return check{arg: arg, values: values, match: verdictAllow, other: verdictDeny}
}

// never denies some values of an argument.
func never(arg int, values ...uint32) check {
	return check{arg: arg, values: values, match: verdictDeny, other: verdictAllow}
}

// merge adds what another program denies.
func (p *program) merge(o *program) {
	for nr, v := range o.verdicts {
		if v != verdictAllow {
			p.verdicts[nr] = v
		}
	}
	for nr, list := range o.checks {
		p.checks[nr] = append(p.checks[nr], list...)
	}
}

// notifying turns every denial into a question to the listener, for audit.
func (p *program) notifying() {
	turn := func(v uint32) uint32 {
		if v == verdictDeny {
			return verdictNotify
		}
		return v
	}
	for nr, v := range p.verdicts {
		p.verdicts[nr] = turn(v)
	}
	for nr, list := range p.checks {
		for i := range list {
			list[i].match, list[i].other = turn(list[i].match), turn(list[i].other)
		}
		p.checks[nr] = list
	}
	p.rest, p.beyond = turn(p.rest), turn(p.beyond)
	delete(p.checks, unix.SYS_IOCTL) // all are counted
	p.set(verdictNotify, unix.SYS_IOCTL)
	for _, nr := range slices.Sorted(maps.Keys(paths)) {
		p.set(verdictNotify, nr)
	}
}
