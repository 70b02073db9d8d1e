package cuda

import (
	"bytes"
	"log/slog"

	"causeway/cuda/fatbin"
	"causeway/host/driver/cuda/cubinvars"
	"causeway/host/driver/cuda/ptxvars"
)

// traits are what is to be known of an image beside what the driver makes of it.
type traits struct {
	// prints: it may call vprintf. The driver hands device output over only in its own
	// synchronising calls, so waits must then go through it. What cannot be looked into counts as
	// printing.
	prints  bool
	managed *movable // nil: it has no managed variables that can move
	// compile is text with managed variables that only its machine code shows how to move.
	compile []byte
	// bytes is what the driver makes for managed variables; hidden: that cannot be told.
	bytes  uint64
	hidden error
}

// movable is code with managed variables.
type movable struct {
	code []byte
	kind fatbin.Format // PTX or ELF
	list []ptxvars.Var
	size uint64 // bytes that they want together
}

// scanAside is the size from which an image is worth a goroutine's look while the driver loads it.
const scanAside = 64 << 10

// scan looks into an image, which nobody changes any more. The returned function waits for the
// answer.
func (s *session) scan(code *fatbin.Code) func() traits {
	sm := s.compute()
	if len(code.Bytes()) < scanAside {
		return func() traits { return traitsOf(code, sm) }
	}
	answer := make(chan traits, 1)
	go func() { answer <- traitsOf(code, sm) }()
	return func() traits { return <-answer }
}

// traitsOf looks at the code that the driver would take from an image for a GPU of compute
// capability sm (major*10 + minor).
func traitsOf(code *fatbin.Code, sm int) traits {
	if code.Format() != fatbin.Container {
		return partTraits(&code.Parts()[0])
	}
	machine, newest, text := chosen(code, sm)
	if newest == nil {
		if text == nil {
			return traits{prints: true}
		}
		return partTraits(text)
	}
	native := traits{}
	for _, p := range machine {
		t := partTraits(p)
		native.prints = native.prints || t.prints
		native.bytes = max(native.bytes, t.bytes)
		if p == newest {
			native.managed = t.managed
		}
	}
	return native
}

// chosen are the parts of an image that a GPU of compute capability sm can do with: its machine
// code, of that the newest, and the newest text.
func chosen(code *fatbin.Code, sm int) (machine []*fatbin.Part, newest, text *fatbin.Part) {
	parts := code.Parts()
	for i := range parts {
		p := &parts[i]
		switch {
		case code.Format() != fatbin.Container && p.Format == fatbin.PTX:
			text = p
		case code.Format() != fatbin.Container:
			machine, newest = append(machine, p), p
		case p.Format == fatbin.PTX && p.SM <= sm && (text == nil || p.SM > text.SM):
			text = p
		case p.Format == fatbin.ELF && p.SM/10 == sm/10 && p.SM <= sm:
			machine = append(machine, p)
			if newest == nil || p.SM > newest.SM {
				newest = p
			}
		}
	}
	return machine, newest, text
}

func partTraits(p *fatbin.Part) traits {
	code, err := p.Code()
	if err != nil {
		return traits{prints: true}
	}
	return codeTraits(code, p.Format)
}

// codeTraits looks at PTX or a cubin: device printf is named in its text or symbols.
func codeTraits(code []byte, kind fatbin.Format) traits {
	t := traits{prints: bytes.Contains(code, []byte("vprintf"))}
	m := &movable{code: bytes.TrimRight(code, "\x00"), kind: kind}
	var err error
	switch kind {
	case fatbin.PTX:
		if !bytes.Contains(code, []byte(".managed")) {
			return t
		}
		t.bytes, t.hidden = ptxvars.Bytes(string(m.code))
		if m.list, m.size, err = ptxvars.Find(string(m.code)); err == nil {
			_, err = m.move(1 << 40)
		}
		if err != nil {
			t.compile = m.code
		}
	case fatbin.ELF:
		m.code = code
		t.bytes = cubinvars.Bytes(code)
		m.list, m.size, err = cubinvars.Find(code)
	}
	if err != nil {
		slog.Info("managed variables", "error", err)
	}
	if err == nil && len(m.list) > 0 {
		t.managed = m
	}
	return t
}

// move is the code with its variables at base plus their offsets.
func (m *movable) move(base uint64) ([]byte, error) {
	if m.kind == fatbin.ELF {
		return cubinvars.Move(m.code, m.list, base)
	}
	text, err := ptxvars.Move(string(m.code), m.list, base)
	return []byte(text), err
}
