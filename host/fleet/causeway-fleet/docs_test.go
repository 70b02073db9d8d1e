package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"causeway/host/fleet/claim"
	"causeway/host/fleet/controller"
)

// yamlBlocks are those of a page.
func yamlBlocks(t *testing.T, file string) (list []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```").FindAllStringSubmatch(string(b), -1) {
		lines := strings.Split(m[2], "\n")
		for i := range lines {
			lines[i] = strings.TrimPrefix(lines[i], m[1])
		}
		list = append(list, strings.Join(lines, "\n"))
	}
	return list
}

// checkOurs judges what only Causeway reads: parameters of claims and classes, wherever they stand,
// and the controller's configuration. It returns how many there were.
func checkOurs(t *testing.T, where, text string) (parameters, hosts int) {
	t.Helper()
	if strings.HasPrefix(text, "# hosts.yaml") {
		f := filepath.Join(t.TempDir(), "hosts.yaml")
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := controller.ReadConfig(f); err != nil || len(c.Hosts) == 0 {
			t.Errorf("%s: hosts.yaml: %+v, %v", where, c, err)
		}
		hosts++
	}
	type part struct {
		Config []resourceapi.DeviceClaimConfiguration `json:"config"`
	}
	var o struct {
		part // alone
		Spec struct {
			part             // of a class
			Devices part     `json:"devices"`
			Spec    struct { // of a template
				Devices part `json:"devices"`
			} `json:"spec"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		return 0, hosts // another's of another type, which its own check judges
	}
	for _, p := range []part{o.part, o.Spec.part, o.Spec.Devices, o.Spec.Spec.Devices} {
		for _, c := range p.Config {
			if c.Opaque == nil || c.Opaque.Driver != claim.Driver {
				t.Errorf("%s: %+v", where, c)
				continue
			}
			if _, err := claim.ParseParameters(c.Opaque.Parameters.Raw); err != nil {
				t.Errorf("%s: %v", where, err)
			}
			parameters++
		}
	}
	return parameters, hosts
}

// TestYAML: what is deployed, and what docs/KUBERNETES.md has people write, is what Kubernetes 1.36
// reads: no field that it does not know, none twice, none of another type.
func TestYAML(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	// Of others' APIs, which client-go does not have, and parts of objects.
	others := []string{"VirtualMachine", "Kustomization", "KubeSchedulerConfiguration", "ServiceMonitor", "Config", ""}
	parameters, hosts := 0, 0
	check := func(where, text string) (kind string) {
		t.Helper()
		p, h := checkOurs(t, where, text)
		parameters, hosts = parameters+p, hosts+h
		var m struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(text), &m); err != nil {
			t.Errorf("%s: %v\n%s", where, err, text)
			return ""
		}
		switch {
		case m.Kind == "Config":
			if _, err := clientcmd.Load([]byte(text)); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		case slices.Contains(others, m.Kind):
		default:
			if _, _, err := decoder.Decode([]byte(text), nil, nil); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
		return m.Kind
	}
	seen := map[string]int{}
	for _, block := range yamlBlocks(t, "../../../docs/KUBERNETES.md") {
		for _, text := range strings.Split(block, "\n---\n") {
			seen[check("docs/KUBERNETES.md", text)]++
		}
	}
	for kind, least := range map[string]int{"Pod": 3, "ResourceClaimTemplate": 3, "ResourceClaim": 1, "VirtualMachine": 1, "Config": 1} {
		if seen[kind] < least {
			t.Errorf("docs/KUBERNETES.md has %d of the kind %s, not %d: are its blocks found?", seen[kind], kind, least)
		}
	}
	files, err := filepath.Glob(deployFolder + "/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(string(b), "\n---\n") {
			check(f, text)
		}
	}
	if parameters < 5 || hosts != 1 {
		t.Errorf("%d sets of parameters and %d configurations of the controller are found", parameters, hosts)
	}
}
