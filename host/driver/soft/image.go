package soft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/host/driver"
	"causeway/host/driver/soft/ptx"
)

// maxLog bounds each log of a compilation, in bytes.
const maxLog = 1 << 20

// build is one compilation: its source once parsed, and what there is to say about it.
type build struct {
	managed *managedVars // where managed variables lie, nil: as others
	shape   bool         // other variables lie nowhere
	began   time.Time
	source  *ptx.Module
	info    strings.Builder
	errs    strings.Builder
}

// results are the fields of a load operation's reply.
func (b *build) results(infoCap, errCap uint32) (ms float32, infoLen, errLen uint32, logs []byte) {
	info, errs := cut(b.info.String(), infoCap), cut(b.errs.String(), errCap)
	ms = float32(float64(time.Since(b.began)) / float64(time.Millisecond))
	return ms, uint32(len(info)), uint32(len(errs)), append([]byte(info), errs...)
}

// cut shortens a log for a buffer of limit bytes that also holds a NUL.
func cut(text string, limit uint32) string {
	if limit == 0 {
		return ""
	}
	return text[:min(len(text), int(min(limit-1, maxLog)))]
}

func (b *build) fail(res cuda.Result, format string, args ...any) cuda.Result {
	fmt.Fprintf(&b.errs, format+"\n", args...)
	return res
}

// parse finds the PTX in an image and parses it.
func (b *build) parse(image, options []byte) cuda.Result {
	b.began = time.Now()
	if res := b.options(options); res != cuda.Success {
		return res
	}
	text, res := b.text(image)
	if res != cuda.Success {
		return res
	}
	m, err := parseModules(text)
	if err == nil {
		err = checkOpcodes(m)
	}
	if err != nil {
		return b.broken(err)
	}
	if m.Version.Major > maxPTXVersion {
		return b.fail(cuda.ErrorUnsupportedPTXVersion, "ptxas fatal   : Unsupported .version %d.%d; the software GPU knows %d.x",
			m.Version.Major, m.Version.Minor, maxPTXVersion)
	}
	if m.SM > capability {
		return b.fail(cuda.ErrorInvalidPTX, "ptxas fatal   : SM version %s is higher than sm_%d, which the software GPU has",
			m.Target, capability)
	}
	if m.AddressSize != 64 {
		return b.fail(cuda.ErrorInvalidPTX, "ptxas fatal   : .address_size %d is not supported, only 64", m.AddressSize)
	}
	b.source = m
	return cuda.Success
}

// broken writes a complaint about source text the way ptxas does.
func (b *build) broken(err error) cuda.Result {
	var at *ptx.Error
	if errors.As(err, &at) {
		fmt.Fprintf(&b.errs, "ptxas application ptx input, line %d; error   : %s\n", at.Line, at.Msg)
	} else {
		fmt.Fprintf(&b.errs, "ptxas error   : %v\n", err)
	}
	return b.fail(cuda.ErrorInvalidPTX, "ptxas fatal   : Ptx assembly aborted due to errors")
}

// options refuses what would change the meaning of a module. The rest are hints for a code
// generator.
func (b *build) options(pairs []byte) cuda.Result {
	for ; len(pairs) >= 16; pairs = pairs[16:] {
		switch opt := binary.LittleEndian.Uint64(pairs); {
		case opt >= cuda.JITNumOptions:
			return b.fail(cuda.ErrorInvalidValue, "unknown JIT option %d", opt)
		case opt >= cuda.JITGlobalSymbolNames && opt <= cuda.JITGlobalSymbolCount:
			return b.fail(cuda.ErrorNotSupported, "JIT option %d (symbols at given addresses) is not supported", opt)
		}
	}
	return cuda.Success
}

// text finds PTX text in an image.
func (b *build) text(image []byte) ([]byte, cuda.Result) {
	const need = "the software GPU runs PTX only: build with -gencode arch=compute_XX,code=compute_XX, XX up to 90"
	switch fatbin.Detect(image) {
	case fatbin.PTX:
		if i := bytes.IndexByte(image, 0); i >= 0 {
			image = image[:i]
		}
		return image, cuda.Success
	case fatbin.ELF:
		return nil, b.fail(cuda.ErrorNoBinaryForGPU, "image is machine code (cubin); %s", need)
	case fatbin.Container:
	default:
		return nil, b.fail(cuda.ErrorInvalidImage, "image is neither PTX, fatbin nor cubin")
	}
	if first, err := fatbin.Size(image); err == nil && first < uint64(len(image)) {
		return b.parts(image)
	}
	list, err := fatbin.Decode(image)
	if err != nil {
		return nil, b.fail(cuda.ErrorInvalidImage, "%v", err)
	}
	best, ok := fatbin.BestPTX(list, capability)
	if !ok {
		var has []string
		for _, e := range list {
			has = append(has, fmt.Sprintf("%s for sm_%d", map[bool]string{true: "PTX", false: "machine code"}[e.Kind == fatbin.KindPTX], e.SM))
		}
		return nil, b.fail(cuda.ErrorNoBinaryForGPU, "fatbin has %s; %s", strings.Join(has, ", "), need)
	}
	text, err := best.Payload()
	if err != nil {
		return nil, b.fail(cuda.ErrorInvalidImage, "%v", err)
	}
	return text, cuda.Success
}

// parts finds PTX in the inputs of a link that follow one another. An input without any for this
// GPU is left out: the device runtime's library is one, and the GPU has that by itself.
func (b *build) parts(image []byte) ([]byte, cuda.Result) {
	var joined []byte
	for len(image) > 0 {
		size, err := fatbin.Size(image)
		if err != nil || size > uint64(len(image)) {
			return nil, b.fail(cuda.ErrorInvalidImage, "inputs of a link: %v", err)
		}
		list, err := fatbin.Decode(image[:size])
		if err != nil {
			return nil, b.fail(cuda.ErrorInvalidImage, "inputs of a link: %v", err)
		}
		image = image[size:]
		best, ok := fatbin.BestPTX(list, capability)
		if !ok {
			continue
		}
		text, err := best.Payload()
		if err != nil {
			return nil, b.fail(cuda.ErrorInvalidImage, "inputs of a link: %v", err)
		}
		joined = append(append(append(joined, linkMark...), bytes.TrimRight(text, "\x00")...), '\n')
	}
	if joined == nil {
		return nil, b.fail(cuda.ErrorNoBinaryForGPU, "no input of the link has PTX that the software GPU can run")
	}
	return joined, cuda.Success
}

// imageRatio is what a loaded module takes for each byte of its text: 14 as the parser leaves it
// and 6 lowered, with 13 MB of kernels like those of CUDA's samples.
const imageRatio = 20

var _ driver.Loader = (*session)(nil)

// ImageBytes implements driver.Loader.
func (s *session) ImageBytes(image []byte) uint64 {
	return imageRatio * fatbin.Unpacked(image, fatbin.KindPTX)
}
