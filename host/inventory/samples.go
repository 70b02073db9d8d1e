package inventory

import (
	"encoding/binary"
	"maps"
	"time"
)

// samples adds up what a driver says of how long a device works for each process. It answers with
// means of what was since it was asked before, so whoever asks would take the answer from others:
// totals are everybody's.
type samples struct {
	seen  uint64 // microseconds: the newest sample's time
	total map[int]time.Duration
	last  map[int]uint64 // when a process was seen last
}

const (
	// Of a sample before which there was none: periods are a sixth of a second to one
	// (nvmlUtilization_t).
	firstSpan = time.Second
	mostSpan  = 20 * time.Second // the driver's memory of samples is not longer
	mostPIDs  = 1024             // that are remembered, if they have ended
)

// add takes a sample: a process had so many per cent of the device from the sample before until at.
func (s *samples) add(pid int, at uint64, from uint64, percent uint32) {
	span := firstSpan
	if from != 0 && at > from {
		span = min(time.Duration(at-from)*time.Microsecond, mostSpan)
	}
	s.total[pid] += span / 100 * time.Duration(min(percent, 100))
	s.last[pid] = at
}

// forget keeps the map small.
func (s *samples) forget() {
	if len(s.total) <= mostPIDs {
		return
	}
	for pid, at := range s.last {
		if at+uint64(time.Minute/time.Microsecond) < s.seen {
			delete(s.total, pid)
			delete(s.last, pid)
		}
	}
}

// work is how long a device has worked for each process, and whether the driver tells
// (nvmlProcessUtilizationSample_t: pid, 4 bytes of padding, time in microseconds, then SM, memory,
// encoder and decoder per cent). A process without any use is in no sample.
func (n *NVML) work(i int, g gpu) (map[int]time.Duration, bool) {
	const stride, most = 32, 2048
	for len(n.works) <= i {
		n.works = append(n.works, samples{total: map[int]time.Duration{}, last: map[int]uint64{}})
	}
	s := &n.works[i]
	var count [4]byte
	binary.LittleEndian.PutUint32(count[:], most)
	list := make([]byte, stride*most)
	switch g.lib.Call("nvmlDeviceGetProcessUtilization", g.handle, list, count[:], s.seen) {
	case Success:
	case NotFound:
		return maps.Clone(s.total), true
	default:
		return nil, false
	}
	since, before := s.seen, map[int]uint64{}
	for range min(binary.LittleEndian.Uint32(count[:]), most) {
		le := binary.LittleEndian
		pid, at := int(le.Uint32(list)), le.Uint64(list[8:])
		from := since
		if b, ok := before[pid]; ok {
			from = b
		}
		if at > from { // what the driver repeats counts once
			s.add(pid, at, from, le.Uint32(list[16:]))
			before[pid] = at
		}
		s.seen = max(s.seen, at)
		list = list[stride:]
	}
	s.forget()
	return maps.Clone(s.total), true
}
