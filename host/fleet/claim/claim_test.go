package claim

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"causeway/host/limit"
)

const uid = "0a1b2c3d-0000-4000-8000-123456789abc"

// allocated is a claim with one device of 1 GiB and a quarter of the time, and what changes makes
// of it.
func allocated(change func(*resourceapi.ResourceClaim, *resourceapi.DeviceRequestAllocationResult)) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Namespace, c.Name, c.UID = "team", "gpu", uid
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: Driver, Pool: "node1", Device: "gpu-1", ConsumedCapacity: amounts("memory", "1Gi", "compute", "25")}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	if change != nil {
		change(c, &r)
	}
	if a := c.Status.Allocation; a != nil {
		a.Devices.Results = append(a.Devices.Results, r)
	}
	return c
}

func amounts(pairs ...string) map[resourceapi.QualifiedName]resource.Quantity {
	m := map[resourceapi.QualifiedName]resource.Quantity{}
	for i := 0; i < len(pairs); i += 2 {
		m[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return m
}

func config(source resourceapi.AllocationConfigSource, text string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(text)}}}}
}

// vgpu is the text of parameters with more fields.
func vgpu(fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU"` + fields + `}`
}

const fromClaim, fromClass = resourceapi.AllocationConfigSourceClaim, resourceapi.AllocationConfigSourceClass

func TestRead(t *testing.T) {
	c, err := Read(allocated(nil))
	if err != nil {
		t.Fatal(err)
	}
	d := &c.Devices()[0]
	w := c.Wish(d, "GPU-1")
	if w.VM != "claim-"+uid || w.Name != "gpu0" || w.GPU != "GPU-1" || *w.Memory != 1<<30 || *w.Share != 2500 || *w.Cap != 0 || !*w.Programs || *w.UserSessions != limit.MostSessions || w.Owner != "" {
		t.Errorf("%+v", w)
	}
	if err := w.Check(); err != nil {
		t.Error(err)
	}
	if got, ok := UIDOf(w.VM); got != uid || !ok {
		t.Errorf("%q %v", got, ok)
	}
	if _, ok := UIDOf("vm1"); ok {
		t.Error("a VM is taken for a claim")
	}
}

// TestParameters: a claim's parameters go before its class's, for the requests that they name; a VM
// gets sockets that its user may open.
func TestParameters(t *testing.T) {
	c, err := Read(allocated(func(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
		r.Request, r.ConsumedCapacity = "gpu/small", amounts(Driver+"/memory", "2Gi")
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
			config(fromClass, vgpu(`"cap":10`)),
			config(fromClaim, vgpu(`"cap":50,"serves":"vm","sessions":8,"hostMemory":"2Gi","vm":{"folder":"/var/run/kubevirt/virtiofs-containers","runAsUser":1000}`), "gpu"),
			config(fromClaim, vgpu(`"cap":1`), "other"),
			{Source: fromClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(`not json`)}}}},
		}
		other := *r
		other.Driver = "nic.example.com"
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, other)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Devices()) != 1 {
		t.Fatalf("%d devices", len(c.Devices()))
	}
	d := &c.Devices()[0]
	w := c.Wish(d, "GPU-1")
	if *w.Memory != 2<<30 || *w.Share != 50 || *w.Cap != 50 || *w.Sessions != 8 || *w.HostMemory != 2<<30 || *w.Programs || w.Owner != "1000:1000" || w.UserSessions != nil {
		t.Errorf("%+v", w)
	}
	if d.Parameters.Folder != "/var/run/kubevirt/virtiofs-containers" {
		t.Errorf("%+v", d.Parameters)
	}
	p, err := ParseParameters([]byte(vgpu(`"serves":"vm"`)))
	if err != nil || p.owner() != "107:107" || p.Folder != defaultFolder {
		t.Errorf("%+v %v", p, err)
	}
}

// TestWithinClass: what a claim takes of the node is what its class says, also where its own
// parameters say nothing of it, or less; a class can say more than what is by default.
func TestWithinClass(t *testing.T) {
	for _, c := range []struct {
		class, claim     string
		sessions, memory uint64 // 0: the node's configuration says it
	}{
		{``, ``, 0, 0},
		{``, `"sessions":64,"hostMemory":"16Gi"`, 64, 16 << 30},
		{`"sessions":8,"hostMemory":"1Gi"`, `"cap":50`, 8, 1 << 30},
		{`"sessions":8,"hostMemory":"1Gi"`, `"sessions":2,"hostMemory":"64Mi"`, 2, 64 << 20},
		{`"sessions":1000,"hostMemory":"900Gi"`, `"sessions":500,"hostMemory":"800Gi"`, 500, 800 << 30},
	} {
		read, err := Read(allocated(func(rc *resourceapi.ResourceClaim, _ *resourceapi.DeviceRequestAllocationResult) {
			rc.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClass, vgpu(c.class)), config(fromClaim, vgpu(c.claim))}
		}))
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if p := read.Devices()[0].Parameters; uint64(p.Sessions) != c.sessions || p.HostMemory != c.memory {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

// TestRefused: each says what is wrong, and that no repetition helps.
func TestRefused(t *testing.T) {
	type result = resourceapi.DeviceRequestAllocationResult
	params := func(text string) func(*resourceapi.ResourceClaim, *result) {
		return func(c *resourceapi.ResourceClaim, _ *result) {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClaim, text)}
		}
	}
	two := func(class, claim string) func(*resourceapi.ResourceClaim, *result) {
		return func(c *resourceapi.ResourceClaim, _ *result) {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClass, vgpu(class)), config(fromClaim, vgpu(claim))}
		}
	}
	consumes := func(pairs ...string) func(*resourceapi.ResourceClaim, *result) {
		return func(_ *resourceapi.ResourceClaim, r *result) { r.ConsumedCapacity = amounts(pairs...) }
	}
	yes := true
	for name, c := range map[string]struct {
		change func(*resourceapi.ResourceClaim, *result)
		says   string
	}{
		"not allocated":        {func(c *resourceapi.ResourceClaim, _ *result) { c.Status.Allocation = nil }, "nothing is allocated"},
		"another driver's":     {func(_ *resourceapi.ResourceClaim, r *result) { r.Driver = "gpu.nvidia.com" }, "no device of gpu.causeway.dev"},
		"UID that is a path":   {func(c *resourceapi.ResourceClaim, _ *result) { c.UID = "../../etc" }, "is no UID"},
		"no UID":               {func(c *resourceapi.ResourceClaim, _ *result) { c.UID = "" }, "is no UID"},
		"admin access":         {func(_ *resourceapi.ResourceClaim, r *result) { r.AdminAccess = &yes }, "admin access"},
		"no memory":            {consumes("compute", "5"), "memory is 0"},
		"zero":                 {consumes("memory", "0"), "memory is 0"},
		"too little":           {consumes("memory", "512Ki"), "less than any program needs"},
		"negative":             {consumes("memory", "-1Gi"), "is negative"},
		"fraction of a byte":   {consumes("memory", "1500m"), "no whole number"},
		"overflowing":          {consumes("memory", "9223372036854775808"), "no whole number below 2^63"},
		"far overflowing":      {consumes("memory", "100000E"), "no whole number below 2^63"},
		"twice":                {consumes("memory", "1Gi", Driver+"/memory", "1Gi"), "named twice"},
		"more than all time":   {consumes("memory", "1Gi", "compute", "101"), "compute is 101"},
		"negative time":        {consumes("memory", "1Gi", "compute", "-1"), "is negative"},
		"foreign capacity":     {consumes("memory", "1Gi", "cores", "1"), `"cores" is none of this driver's`},
		"no text":              {params(``), "parameters"},
		"not JSON":             {params(`cap: 5`), "parameters"},
		"foreign kind":         {params(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`), `kind "GpuConfig": use causeway.dev/v1alpha1`},
		"unknown field":        {params(vgpu(`"share":300`)), `unknown field "share": use serves, cap`},
		"field in other case":  {params(vgpu(`"Cap":5`)), `unknown field "Cap"`},
		"field twice":          {params(vgpu(`"cap":5,"cap":6`)), `duplicate field "cap"`},
		"long":                 {params(vgpu(`"serves":"` + strings.Repeat("x", mostParameters) + `"`)), "more than 10240"},
		"for nobody":           {params(vgpu(`"serves":"both"`)), "use container or vm"},
		"cap of 0":             {params(vgpu(`"cap":0`)), "cap: 0: use 1 to 100"},
		"cap of 101":           {params(vgpu(`"cap":101`)), "cap: 101"},
		"cap with a fraction":  {params(vgpu(`"cap":1.5`)), "cap"},
		"cap that overflows":   {params(vgpu(`"cap":18446744073709551617`)), "cap"},
		"too many sessions":    {params(vgpu(`"sessions":1001`)), "sessions: 1001"},
		"no sessions":          {params(vgpu(`"sessions":-1`)), "sessions: -1"},
		"no host memory":       {params(vgpu(`"hostMemory":"0"`)), "hostMemory: 0 is no size"},
		"odd host memory":      {params(vgpu(`"hostMemory":"4GiB"`)), "hostMemory is no quantity: write 4Gi"},
		"little host memory":   {params(vgpu(`"hostMemory":"1Mi"`)), "hostMemory"},
		"negative host memory": {params(vgpu(`"hostMemory":"-1Gi"`)), "is negative"},
		"VM of a container":    {params(vgpu(`"vm":{}`)), "it is for serves: vm"},
		"folder over files":    {params(vgpu(`"serves":"vm","vm":{"folder":"/etc"}`)), "below /run"},
		"folder that leads up": {params(vgpu(`"serves":"vm","vm":{"folder":"/run/../etc"}`)), "below /run"},
		"folder with a colon":  {params(vgpu(`"serves":"vm","vm":{"folder":"/run/a:b"}`)), "below /run"},
		"user of nobody":       {params(vgpu(`"serves":"vm","vm":{"runAsUser":4294967295}`)), "vm.runAsUser"},
		"unknown source": {func(c *resourceapi.ResourceClaim, _ *result) {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config("FromElsewhere", vgpu(""))}
		}, "neither a class nor a claim"},
		"more sessions than by default":     {params(vgpu(`"sessions":65`)), "more than a claim of this class may have, 64"},
		"more host memory than by default":  {params(vgpu(`"hostMemory":"17Gi"`)), "more than a claim of this class may have, 16GiB"},
		"more sessions than the class says": {two(`"sessions":8`, `"sessions":9`), "may have, 8"},
		"more memory than the class says":   {two(`"hostMemory":"1Gi","serves":"vm"`, `"hostMemory":"2Gi"`), "may have, 1GiB"},
		"a class that is none":              {two(`"sessions":0`, ``), "sessions: 0"},
		"two sets": {func(c *resourceapi.ResourceClaim, _ *result) {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClaim, vgpu("")), config(fromClaim, vgpu(""), "gpu")}
		}, "two sets of parameters"},
		"two GPUs for a container": {func(c *resourceapi.ResourceClaim, r *result) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, *r)
		}, "2 GPUs for a container"},
		"a container and a VM": {func(c *resourceapi.ResourceClaim, r *result) {
			other := *r
			other.Request = "vm"
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, other)
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClaim, vgpu(`"serves":"vm"`), "vm")}
		}, "a claim for each"},
		"too many": {func(c *resourceapi.ResourceClaim, r *result) {
			for range mostDevices {
				c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, *r)
			}
		}, "more than 32"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(allocated(c.change))
			if !errors.Is(err, ErrClaim) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, not %q", err, c.says)
			}
		})
	}
}

// FuzzParameters: what is accepted makes a wish that causewayd takes, and sockets where they may
// lie.
func FuzzParameters(f *testing.F) {
	for _, s := range []string{
		vgpu(""), vgpu(`"serves":"vm","cap":100,"sessions":1000,"hostMemory":"64Mi","vm":{"folder":"/run/x","runAsUser":0,"runAsGroup":5}`), vgpu(`"hostMemory":1e30`),
		vgpu(`"cap":-9223372036854775808`), `{}`, `[]`, `null`, vgpu(`"hostMemory":"1.5Gi"`), vgpu(`"vm":null`),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseParameters(b)
		if err != nil {
			if !errors.Is(err, ErrClaim) {
				t.Error(err)
			}
			return
		}
		c := &Claim{id: ID{UID: uid}}
		w := c.Wish(&Device{Name: "gpu0", Memory: 1 << 30, Compute: 100, Parameters: p}, "GPU-1")
		if err := w.Check(); err != nil {
			t.Errorf("%s: %v", b, err)
		}
		if p.Serves == VirtualMachine && (!strings.HasPrefix(p.Folder, "/run/") && !strings.HasPrefix(p.Folder, "/var/run/") || strings.Contains(p.Folder, "..")) {
			t.Errorf("%s: sockets in %q", b, p.Folder)
		}
	})
}

// FuzzClaim: whatever a claim says, what is read of it makes wishes that causewayd takes, no two of
// one name.
func FuzzClaim(f *testing.F) {
	for _, c := range []*resourceapi.ResourceClaim{
		allocated(nil), allocated(func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity = amounts("memory", "-1e3")
		}),
		allocated(func(c *resourceapi.ResourceClaim, _ *resourceapi.DeviceRequestAllocationResult) {
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClass, vgpu(`"cap":5`))}
		}),
	} {
		b, err := json.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var rc resourceapi.ResourceClaim
		if json.Unmarshal(b, &rc) != nil {
			return
		}
		c, err := Read(&rc)
		if err != nil {
			return
		}
		names := map[string]bool{}
		for i := range c.Devices() {
			w := c.Wish(&c.Devices()[i], "GPU-1")
			if err := w.Check(); err != nil || names[w.Name] || *w.Memory == 0 {
				t.Errorf("%s: %+v: %v", b, w, err)
			}
			names[w.Name] = true
		}
	})
}
