package soft

import (
	"bytes"
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/ptx"
)

// link is a CUlinkState: the PTX of its inputs. Machine code cannot be linked here.
type link struct {
	ctx      *gpuContext
	options  []byte
	infoCap  uint32
	errCap   uint32
	log      build
	texts    [][]byte
	names    []string
	broken   cuda.Result // of the first input that was refused: what every later step answers
	size     int
	image    []byte
	finished bool
}

// Kinds of link inputs (CUjitInputType).
const (
	inputCubin  = 0
	inputPTX    = 1
	inputFatbin = 2
)

const (
	maxLinkInputs = 4096
	maxLinkBytes  = 1 << 30
)

// linkMark begins a linked image: PTX text of which each module follows a line of this kind. It is
// a comment, so that whoever looks at the image finds PTX.
const linkMark = "// causeway: linked module\n"

// LinkCreate opens a link.
func (s *session) LinkCreate(c *wire.Call, a *wire.LinkCreateArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	l := &link{ctx: g, options: bytes.Clone(a.Options), infoCap: a.InfoCap, errCap: a.ErrCap}
	if res := l.log.options(l.options); res != cuda.Success {
		return res
	}
	if s.links == nil {
		s.links = table[*link]{}
	}
	return s.links.put(a.Link, l)
}

// LinkAdd parses an input, so that its errors belong to it.
func (s *session) LinkAdd(c *wire.Call, a *wire.LinkAddArgs, r *wire.LinkAddReply) cuda.Result {
	l, ok := s.links[a.Link]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	res := l.add(a)
	r.WallMs, r.InfoLen, r.ErrLen, r.Logs = l.log.results(l.infoCap, l.errCap)
	return res
}

func (l *link) add(a *wire.LinkAddArgs) cuda.Result {
	switch {
	case l.broken != cuda.Success:
		return l.broken
	case l.finished || len(l.texts) >= maxLinkInputs:
		return cuda.ErrorInvalidValue
	case a.Type != inputPTX && a.Type != inputFatbin:
		l.broken = l.log.fail(cuda.ErrorNoBinaryForGPU, "error   : input '%s' of type %d: the software GPU links PTX only", a.Name, a.Type)
		return l.broken
	}
	b := build{}
	res := b.parse(a.Input, a.Options)
	l.log.began = b.began
	l.log.errs.WriteString(b.errs.String())
	l.log.info.WriteString(b.info.String())
	var text []byte
	if res == cuda.Success {
		text, res = b.text(a.Input)
	}
	if res != cuda.Success {
		l.broken = res
		return res
	}
	if l.size += len(text); l.size > maxLinkBytes {
		return cuda.ErrorOutOfMemory
	}
	l.texts = append(l.texts, bytes.Clone(text))
	l.names = append(l.names, string(a.Name))
	if len(l.texts) > 1 {
		l.broken = l.judge(false)
	}
	return l.broken
}

// judge links tentatively; what is not defined yet counts only at the end.
func (l *link) judge(last bool) cuda.Result {
	_, err := parseModules(l.joined())
	var e *ptx.LinkError
	switch {
	case err == nil || errors.As(err, &e) && !e.Twice && !last:
		return cuda.Success
	case e == nil:
		return l.log.broken(err)
	}
	l.log.fail(0, "error   : %s in '%s'", e.Error(), l.names[min(e.Module, len(l.names)-1)])
	return cuda.ErrorInvalidSource
}

func (l *link) joined() []byte {
	var image []byte
	for _, text := range l.texts {
		image = append(append(append(image, linkMark...), text...), '\n')
	}
	return image
}

// LinkComplete checks that the inputs fit together. The image is their texts.
func (s *session) LinkComplete(c *wire.Call, a *wire.LinkCompleteArgs, r *wire.LinkCompleteReply) cuda.Result {
	l, ok := s.links[a.Link]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	res := cuda.Success
	if a.Again == 0 || !l.finished {
		res = l.complete()
	}
	ms, info, errs, logs := l.log.results(l.infoCap, l.errCap)
	r.WallMs, r.InfoLen, r.ErrLen = ms, info, errs
	r.Result = append(logs, l.image...)
	return res
}

func (l *link) complete() cuda.Result {
	switch {
	case l.broken != cuda.Success:
		return l.broken
	case l.finished:
		return cuda.ErrorInvalidHandle
	}
	if len(l.texts) > 0 {
		if l.broken = l.judge(true); l.broken != cuda.Success {
			return l.broken
		}
	}
	l.image, l.finished = append(l.joined(), 0), true
	return cuda.Success
}

// LinkDestroy ends a link.
func (s *session) LinkDestroy(c *wire.Call, a *wire.LinkDestroyArgs) cuda.Result {
	if _, ok := s.links[a.Link]; !ok {
		return cuda.ErrorInvalidHandle
	}
	delete(s.links, a.Link)
	return cuda.Success
}

// parseModules parses PTX text, or the texts of a linked image into one module.
func parseModules(text []byte) (*ptx.Module, error) {
	rest, linked := bytes.CutPrefix(text, []byte(linkMark))
	if !linked {
		return ptx.Parse(text)
	}
	var list []*ptx.Module
	for _, part := range bytes.Split(rest, []byte("\n"+linkMark)) {
		if len(list) >= maxLinkInputs {
			return nil, fmt.Errorf("more than %d modules", maxLinkInputs)
		}
		m, err := ptx.Parse(part)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return ptx.Link(list)
}
