package cuda

import (
	"slices"
	"strings"
	"testing"
)

// TestCompose: a guest's variables reach its worker's driver if they are a guest's to set.
func TestCompose(t *testing.T) {
	all := []string{"0"}
	for name, c := range map[string]struct {
		guest   []string
		host    []string // names set in the worker's environment
		offered []string
		want    []string
	}{
		"nothing":                    {},
		"a guest's":                  {guest: []string{"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MODULE_LOADING=EAGER"}, want: []string{"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MODULE_LOADING=EAGER"}},
		"no cache":                   {guest: []string{"CUDA_CACHE_DISABLE=1"}, want: []string{"CUDA_CACHE_DISABLE=1"}},
		"the operator has none":      {guest: []string{"CUDA_CACHE_DISABLE=0"}, host: []string{"CUDA_CACHE_DISABLE"}},
		"a path of the host":         {guest: []string{"CUDA_CACHE_PATH=/root/.nv", "CUDA_CACHE_PATH=", "CUDA_CACHE_MAXSIZE=4294967296"}},
		"beside the virtual GPU's":   {guest: []string{"CUDA_CACHE_PATH=/tmp", "CUDA_CACHE_DISABLE=1"}, host: []string{"CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE"}, want: []string{"CUDA_CACHE_DISABLE=1"}},
		"files and libraries":        {guest: []string{"CUDA_LOG_FILE=/etc/x", "CUDA_COREDUMP_FILE=/etc/x", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1", "CUDA_INJECTION64_PATH=/tmp/x.so", "CUDA_MPS_PIPE_DIRECTORY=/tmp"}},
		"unknown":                    {guest: []string{"CUDA_", "CUDA_=", "CUDA_NEXT=1", "CUDA_CACHE_DISABLE", "LD_PRELOAD=x", "=", ""}},
		"devices":                    {guest: []string{"CUDA_VISIBLE_DEVICES=0"}, want: []string{"CUDA_VISIBLE_DEVICES=0"}},
		"offered devices":            {offered: all, want: []string{"CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
		"other than offered":         {guest: []string{"CUDA_VISIBLE_DEVICES=1"}, offered: all, want: []string{"CUDA_VISIBLE_DEVICES=-1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
		"an order beside the host's": {guest: []string{"CUDA_DEVICE_ORDER=FASTEST_FIRST"}, offered: all, want: []string{"CUDA_DEVICE_ORDER=FASTEST_FIRST", "CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
	} {
		var got []string
		set, dropped := compose([]byte(strings.Join(c.guest, "\x00")), c.offered, func(name string) (string, bool) { return "", slices.Contains(c.host, name) })
		for _, v := range set {
			got = append(got, v.name+"="+v.value)
		}
		for _, kv := range c.guest {
			name, _, variable := strings.Cut(kv, "=")
			if told := slices.Contains(dropped, name); variable && told == (name == visibleDevices || slices.Contains(c.want, kv)) {
				t.Errorf("%s: %q told of: %t", name, kv, told)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
