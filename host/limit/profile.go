package limit

import (
	"fmt"
	"strconv"
	"strings"
)

// Profile is limits under a name: a part of any GPU.
type Profile struct {
	Memory Portion `toml:"memory" json:"memory"`
	Share  Share   `toml:"share" json:"share"`
	Cap    Cap     `toml:"cap" json:"cap"`
}

// Profiles are those that there are where a configuration lists none. Shares are per cent of the
// GPU.
func Profiles() map[string]Profile {
	return map[string]Profile{
		"full":    {Memory: Portion{Part: 1, Of: 1}, Share: 100},
		"half":    {Memory: Portion{Part: 1, Of: 2}, Share: 50},
		"quarter": {Memory: Portion{Part: 1, Of: 4}, Share: 25},
		"eighth":  {Memory: Portion{Part: 1, Of: 8}, Share: 12},
	}
}

// Check says what is wrong with a profile.
func (p *Profile) Check() error {
	if p.Memory == (Portion{}) {
		return wrong("a profile without memory: write a part of the GPU's as in 1/4, or a size as in 16GiB")
	}
	if err := p.Share.Check(); err != nil {
		return err
	}
	return p.Cap.Check()
}

// mostParts bounds a Portion.
const mostParts = 1 << 16

// Portion is a part of a GPU's memory, as in 1/4 or 25%, or a size.
type Portion struct {
	Part, Of uint32 // both 0: Size
	Size     Memory
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Portion) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	*p = Portion{}
	part, of, fraction := strings.Cut(text, "/")
	percent, isPercent := strings.CutSuffix(text, "%")
	switch {
	case fraction:
	case isPercent:
		part, of = percent, "100"
	case text == none:
		return wrong("a profile's memory is a part of the GPU's, as in 1/4, or a size as in 16GiB")
	default:
		return p.Size.UnmarshalText([]byte(text))
	}
	n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 16)
	d, err2 := strconv.ParseUint(strings.TrimSpace(of), 10, 16)
	if err != nil || err2 != nil || n == 0 || n > d || d > mostParts {
		return wrong("%q is no part of a GPU's memory: write 1/4, 25%%, or a size as in 16GiB", b)
	}
	p.Part, p.Of = uint32(n), uint32(d)
	return nil
}

func (p Portion) String() string {
	if p.Of == 0 {
		return p.Size.String()
	}
	return fmt.Sprintf("%d/%d", p.Part, p.Of)
}

// MarshalText implements encoding.TextMarshaler.
func (p Portion) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// On is a portion of g's memory. As many vGPUs of it as its denominator says fit, with what a real
// driver takes for itself and for the workers that wait ready: both are taken off. A portion that
// is too small, or too large, is an error.
func (p Portion) On(g GPU) (Memory, error) {
	m := p.Size
	if p.Of != 0 {
		m = p.part(g)
	}
	if m == 0 {
		return 0, wrong("%v of %s, which has %s, leaves nothing for a vGPU", p, g.Name, human(g.Memory))
	}
	return m, g.Fits(m, 1)
}

func (p Portion) part(g GPU) Memory {
	whole, waiting, grain := g.Memory, uint64(0), uint64(1<<20)
	if !g.Soft {
		whole -= min(whole/32, driverReal)
		waiting = uint64(max(g.Waiting, 0)) * contextReal
		grain = 64 << 20
	}
	part := whole / uint64(p.Of) * uint64(p.Part)
	part -= min(waiting, part)
	return Memory(part / grain * grain)
}
