package link

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"causeway/remote"
)

func TestFits(t *testing.T) {
	for _, c := range []struct {
		env     []string
		devices int
		want    bool
	}{
		{nil, 0, true},
		{[]string{"PATH=/bin", "CUDA_HOME=/usr/local/cuda", "CUDA_LAUNCH_BLOCKING=1"}, 0, true},
		{[]string{"CUDA_VISIBLE_DEVICES=0"}, 1, true},
		{[]string{"CUDA_VISIBLE_DEVICES=0"}, 2, false},
		{[]string{"CUDA_VISIBLE_DEVICES=0"}, 0, false},
		{[]string{"CUDA_VISIBLE_DEVICES=1"}, 1, false},
		{[]string{"CUDA_VISIBLE_DEVICES="}, 1, false},
		{[]string{"CUDA_DEVICE_MAX_CONNECTIONS=1"}, 1, false},
		{[]string{"CUDA_HOMES=1"}, 1, false},
		{[]string{"CUDA_CACHE_PATH=/tmp/x", "CUDA_CACHE_MAXSIZE=1"}, 1, true},
		{[]string{"CUDA_CACHE_DISABLE=1"}, 1, false},
	} {
		if got := Fits(remote.Hello{Flags: EnvFlags(c.env)}, c.devices); got != c.want {
			t.Errorf("%q on %d devices: %v", c.env, c.devices, got)
		}
	}
}

// TestHarmless: the guest library judges by the same list.
func TestHarmless(t *testing.T) {
	src, err := os.ReadFile("../../../guest/libcuda/session/carrier_common.c")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`"(CUDA_[A-Z_]+)"`).FindAllSubmatch(src, -1) {
		names = append(names, string(m[1]))
	}
	want := slices.Sorted(slices.Values(harmless))
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("the guest library has %q, this package %q", names, want)
	}
}
