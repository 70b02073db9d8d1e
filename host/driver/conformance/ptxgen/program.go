package ptxgen

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Lanes is the number of threads of a program, one warp.
const Lanes = 32

// inputs is how many values of each type a lane loads; slot is the bytes that hold one value of one
// lane.
const (
	inputs = 4
	slot   = 8
	types  = "rdfeh"
)

// Entry is the kernel's name: (.param .u64 results, .param .u64 inputs).
const Entry = "random"

// Program is one random kernel.
type Program struct {
	Text  string
	Steps []string // the instruction that made each result, as written
	Input []byte   // what the kernel's second parameter points at
}

// OutputSize is the size of the results in bytes: Lanes slots for each step.
func (p *Program) OutputSize() int { return len(p.Steps) * Lanes * slot }

// Sums condenses results, one number for each step.
func (p *Program) Sums(output []byte) []uint32 {
	var out []uint32
	for i := range p.Steps {
		h := fnv.New32a()
		h.Write(output[i*Lanes*slot : (i+1)*Lanes*slot])
		out = append(out, h.Sum32())
	}
	return out
}

// Value is what a lane computed in a step.
func (p *Program) Value(output []byte, step, lane int) uint64 {
	return binary.LittleEndian.Uint64(output[(step*Lanes+lane)*slot:])
}

// Sources lists the inputs that a step's instruction reads in a lane; operands that other steps
// made are left out.
func (p *Program) Sources(step, lane int) string {
	var out []string
	for _, word := range strings.FieldsFunc(p.Steps[step], func(r rune) bool { return strings.ContainsRune(" ,;", r) }) {
		if len(word) < 3 || word[0] != '%' {
			continue
		}
		kind := strings.IndexByte(types, word[1])
		n, err := strconv.Atoi(word[2:])
		if kind < 0 || err != nil || n < 1 || n > inputs {
			continue
		}
		v := binary.LittleEndian.Uint64(p.Input[((kind*inputs+n-1)*Lanes+lane)*slot:])
		out = append(out, fmt.Sprintf("%s=%#x", word, v))
	}
	return strings.Join(out, " ")
}

// registers by type: name prefix and PTX type.
var registers = map[byte]string{'r': "b32", 'd': "b64", 'f': "f32", 'e': "f64", 'h': "b16", 'p': "pred", 't': "b32"}

type builder struct {
	rng   *rand.Rand
	body  strings.Builder
	count map[byte]int
	steps []string
}

// New makes the program of a seed with the given number of instructions.
func New(seed uint64, length int) *Program {
	return build(seed, pick(rand.New(rand.NewPCG(seed, 1)), Forms(), length))
}

// Single makes a program of one form.
func Single(seed uint64, form string) *Program { return build(seed, []string{form}) }

func pick(rng *rand.Rand, all []string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = all[rng.IntN(len(all))]
	}
	return out
}

func build(seed uint64, chosen []string) *Program {
	b := &builder{rng: rand.New(rand.NewPCG(seed, 2)), count: map[byte]int{}}
	input := b.load()
	for _, form := range chosen {
		b.step(form)
	}
	var text strings.Builder
	text.WriteString(".version 8.0\n.target sm_90\n.address_size 64\n")
	fmt.Fprintf(&text, ".visible .entry %s(.param .u64 results, .param .u64 inputs)\n{\n", Entry)
	for _, t := range []byte("rdfehpt") {
		fmt.Fprintf(&text, ".reg .%s %%%c<%d>;\n", registers[t], t, b.count[t]+1)
	}
	text.WriteString(".reg .b64 %out, %in; .reg .b32 %lane;\n")
	text.WriteString("ld.param.u64 %out, [results]; ld.param.u64 %in, [inputs];\n")
	text.WriteString("mov.u32 %lane, %tid.x; mul.wide.u32 %d0, %lane, 8; add.u64 %out, %out, %d0; add.u64 %in, %in, %d0;\n")
	text.WriteString(b.body.String())
	text.WriteString("ret;\n}\n")
	return &Program{Text: text.String(), Steps: b.steps, Input: input}
}

// load fills the first registers of each type from memory.
func (b *builder) load() []byte {
	var input []byte
	for t := range []byte(types) {
		kind := types[t]
		for range inputs {
			reg := b.fresh(kind)
			bits := map[byte]string{'h': "b16", 'r': "b32", 'f': "f32", 'd': "b64", 'e': "f64"}[kind]
			fmt.Fprintf(&b.body, "ld.global.%s %s, [%%in+%d];\n", bits, reg, len(input))
			for range Lanes {
				input = binary.LittleEndian.AppendUint64(input, awkward(b.rng, kind))
			}
		}
	}
	for i := range inputs {
		fmt.Fprintf(&b.body, "setp.lt.s32 %s, %%r%d, %%r%d;\n", b.fresh('p'), i+1, (i+1)%inputs+1)
	}
	return input
}

func (b *builder) fresh(t byte) string {
	b.count[t]++
	return "%" + string(t) + strconv.Itoa(b.count[t])
}

// step writes one form with operands, and stores its result.
func (b *builder) step(form string) {
	var written []string
	var result string
	var kind byte
	for _, one := range strings.Split(form, ";") {
		words := strings.Fields(one)
		operands := make([]string, 0, len(words)-1)
		var made string
		for i, w := range words[1:] {
			switch {
			case i == 0 && len(w) == 1: // the destination exists only after the sources were chosen
				operands = append(operands, "")
				made = w
			case len(w) == 1 && strings.Contains("RDFEHP", w):
				operands = append(operands, b.source(w[0]|0x20))
			case w[0] == '#':
				operands = append(operands, b.immediate(w[1:]))
			default:
				operands = append(operands, w)
			}
		}
		kind = made[0]
		result = b.fresh(kind)
		operands[0] = result
		written = append(written, words[0]+" "+strings.Join(operands, ", ")+";")
	}
	line := strings.Join(written, " ")
	fmt.Fprintln(&b.body, line)
	b.store(kind, result, len(b.steps))
	b.steps = append(b.steps, line)
}

// source prefers values that came from memory: a difference then stays with the instruction that
// made it.
func (b *builder) source(t byte) string {
	n := b.count[t]
	if b.rng.IntN(4) > 0 {
		n = inputs
	}
	return "%" + string(t) + strconv.Itoa(1+b.rng.IntN(n))
}

// immediate picks from "lo-hi".
func (b *builder) immediate(bounds string) string {
	cut := strings.LastIndexByte(bounds, '-')
	lo, errLo := strconv.Atoi(bounds[:cut])
	hi, errHi := strconv.Atoi(bounds[cut+1:])
	if errLo != nil || errHi != nil {
		panic("ptxgen: immediate " + bounds)
	}
	return strconv.Itoa(lo + b.rng.IntN(hi-lo+1))
}

// store widens the result to 64 bits without another conversion's help.
func (b *builder) store(t byte, reg string, step int) {
	at := step * Lanes * slot
	switch t {
	case 'p':
		fmt.Fprintf(&b.body, "selp.b64 %%d0, 1, 0, %s; st.global.b64 [%%out+%d], %%d0;\n", reg, at)
	case 'd', 'e':
		fmt.Fprintf(&b.body, "st.global.b64 [%%out+%d], %s;\n", at, reg)
	case 'h':
		fmt.Fprintf(&b.body, "st.global.b16 [%%out+%d], %s;\n", at, reg)
	default:
		fmt.Fprintf(&b.body, "st.global.b32 [%%out+%d], %s;\n", at, reg)
	}
}
