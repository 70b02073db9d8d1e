package inventory

import (
	"errors"
	"fmt"
)

// Answer is what a guest's libnvidia-ml.so.1 is told.
type Answer struct {
	CUDA      uint32 // 13000 is 13.0
	Driver    string
	NVML      string
	Devices   []Device
	Processes []Process
	Pairs     []Pair
	Links     []Link
}

// Numbers that nobody knows.
const (
	Unknown32 = ^uint32(0)
	Unknown64 = ^uint64(0)
)

// Unknown is a device of which nothing is known.
func Unknown() Device {
	b := make([]byte, DeviceSize)
	for i := range b {
		b[i] = 0xff
	}
	var d Device
	_ = d.Decode(b) // fixed size: cannot fail
	d.Name, d.Vbios, d.UUID = [96]uint8{}, [32]uint8{}, [16]uint8{}
	return d
}

// Encode is the answer as the guest reads it. What exceeds the format's counts is left out.
func (a *Answer) Encode() []byte {
	devices := a.Devices[:min(len(a.Devices), SnapshotDevices)]
	processes := a.Processes[:min(len(a.Processes), SnapshotProcesses)]
	pairs := a.Pairs[:min(len(a.Pairs), SnapshotPairs)]
	links := a.Links[:min(len(a.Links), SnapshotLinks)]
	s := Snapshot{
		Magic: SnapshotMagic, Version: SnapshotVersion, CudaVersion: a.CUDA,
		DeviceCount: uint32(len(devices)), ProcessCount: uint32(len(processes)),
		PairCount: uint32(len(pairs)), LinkCount: uint32(len(links)),
	}
	size := SnapshotSize + len(devices)*DeviceSize + len(processes)*ProcessSize + len(pairs)*PairSize + len(links)*LinkSize
	s.Size = uint32(size)
	setText(s.DriverVersion[:], a.Driver)
	setText(s.NvmlVersion[:], a.NVML)
	b := s.Append(make([]byte, 0, size))
	for i := range devices {
		b = devices[i].Append(b)
	}
	for i := range processes {
		b = processes[i].Append(b)
	}
	for i := range pairs {
		b = pairs[i].Append(b)
	}
	for i := range links {
		b = links[i].Append(b)
	}
	return b
}

var errAnswer = errors.New("not an answer")

// DecodeAnswer reads what Encode made.
func DecodeAnswer(b []byte) (*Answer, error) {
	var s Snapshot
	if len(b) < SnapshotSize || s.Decode(b) != nil || s.Magic != SnapshotMagic || s.Version != SnapshotVersion || uint64(s.Size) != uint64(len(b)) {
		return nil, errAnswer
	}
	want := SnapshotSize + uint64(s.DeviceCount)*DeviceSize + uint64(s.ProcessCount)*ProcessSize + uint64(s.PairCount)*PairSize + uint64(s.LinkCount)*LinkSize
	if want != uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d bytes, its counts say %d", errAnswer, len(b), want)
	}
	a := &Answer{CUDA: s.CudaVersion, Driver: text(s.DriverVersion[:]), NVML: text(s.NvmlVersion[:])}
	b = b[SnapshotSize:]
	a.Devices, b = decode[Device](b, int(s.DeviceCount), DeviceSize)
	a.Processes, b = decode[Process](b, int(s.ProcessCount), ProcessSize)
	a.Pairs, b = decode[Pair](b, int(s.PairCount), PairSize)
	a.Links, _ = decode[Link](b, int(s.LinkCount), LinkSize)
	return a, nil
}

func decode[T any, P interface {
	*T
	Decode([]byte) error
}](b []byte, n, size int) ([]T, []byte) {
	list := make([]T, n)
	for i := range list {
		_ = P(&list[i]).Decode(b[i*size:]) // long enough: the caller counted
	}
	return list, b[n*size:]
}

// setText stores a text and its NUL, cut to fit.
func setText(to []byte, s string) {
	clear(to)
	copy(to[:len(to)-1], s)
}

// Text is what is before the first NUL.
func Text(b []byte) string { return text(b) }

// text is Text.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
