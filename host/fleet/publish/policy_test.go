package publish

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// policy is one of host/fleet/deploy, as the API server evaluates it.
type policy struct {
	t    *testing.T
	env  *cel.Env
	spec admission.ValidatingAdmissionPolicySpec
	made map[string]cel.Program // by expression: to compile one takes longer than all its requests
}

// readPolicies are those of a file, by name.
func readPolicies(t *testing.T, file string) map[string]*policy {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	var vars []cel.EnvOption
	for _, name := range []string{"object", "oldObject", "request", "variables"} {
		vars = append(vars, cel.Variable(name, cel.DynType))
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: vars})
	if err != nil {
		t.Fatal(err)
	}
	env, err := set.Env(environment.StoredExpressions)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*policy{}
	for _, part := range strings.Split(string(b), "\n---\n") {
		var p admission.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(part), &p); err != nil {
			t.Fatal(err)
		}
		if p.Kind == "ValidatingAdmissionPolicy" {
			out[p.Name] = &policy{t, env, p.Spec, map[string]cel.Program{}}
		}
	}
	return out
}

func (p *policy) eval(expression string, in map[string]any) any {
	p.t.Helper()
	if p.made[expression] == nil {
		ast, issues := p.env.Compile(expression)
		if issues.Err() != nil {
			p.t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := p.env.Program(ast)
		if err != nil {
			p.t.Fatalf("%s: %v", expression, err)
		}
		p.made[expression] = program
	}
	v, _, err := p.made[expression].Eval(in)
	if err != nil {
		return err // which the API server takes for a refusal, by the failurePolicy
	}
	return v.Value()
}

// allows judges a request: JSON of it, of the object and of the one before, which may be "".
func (p *policy) allows(request, object, old string) (bool, string) {
	p.t.Helper()
	in := map[string]any{}
	for name, text := range map[string]string{"request": request, "object": object, "oldObject": old} {
		var v any
		if text != "" {
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				p.t.Fatal(err)
			}
		}
		in[name] = v
	}
	for _, c := range p.spec.MatchConditions {
		if is := p.eval(c.Expression, in); is == false {
			return true, "it is not asked"
		}
	}
	variables := map[string]any{}
	in["variables"] = variables
	for _, v := range p.spec.Variables {
		variables[v.Name] = p.eval(v.Expression, in)
	}
	for _, v := range p.spec.Validations {
		if is := p.eval(v.Expression, in); is != true {
			if v.MessageExpression != "" {
				text, _ := p.eval(v.MessageExpression, in).(string)
				return false, text
			}
			return false, v.Message
		}
	}
	return true, ""
}

// sliceOf is JSON of a ResourceSlice; node "": it names none.
func sliceOf(driver, node, pool string) string {
	s := `{"spec":{"driver":"` + driver + `","pool":{"name":"` + pool + `"}`
	if node != "" {
		s += `,"nodeName":"` + node + `"`
	}
	return s + `}}`
}

// TestSlicePolicies: a node's driver, its agent, and whoever has a node's rights write slices of
// the node's own pool and of no other; the fleet's controller those of its pools.
func TestSlicePolicies(t *testing.T) {
	all := readPolicies(t, "causeway-dra.yaml")
	for name, p := range readPolicies(t, "causeway-fleet.yaml") {
		all[name] = p
	}
	const ours = "gpu.causeway.dev"
	dra := `{"operation":"OP","userInfo":{"username":"system:serviceaccount:causeway:causeway-dra","groups":["system:serviceaccounts"],"extra":{"authentication.kubernetes.io/node-name":["a"]}}}`
	unbound := `{"operation":"OP","userInfo":{"username":"system:serviceaccount:causeway:causeway-dra","groups":["system:serviceaccounts"]}}`
	node := `{"operation":"OP","userInfo":{"username":"system:node:a","groups":["system:nodes","system:authenticated"]}}`
	fleet := `{"operation":"OP","userInfo":{"username":"system:serviceaccount:causeway:causeway-fleet","groups":["system:serviceaccounts"]}}`
	admin := `{"operation":"OP","userInfo":{"username":"kubernetes-admin"}}`
	for _, c := range []struct {
		who, slice string
		allowed    bool
	}{
		{dra, sliceOf(ours, "a", "a"), true},
		{dra, sliceOf(ours, "b", "b"), false},
		{dra, sliceOf(ours, "a", "b"), false},
		{dra, sliceOf(ours, "a", "fleet/gpu1"), false},
		{dra, sliceOf(ours, "", "a"), false},
		{dra, sliceOf("gpu.example.com", "a", "a"), false},
		// An overlay names another namespace.
		{strings.ReplaceAll(dra, ":causeway:", ":gpus:"), sliceOf(ours, "b", "b"), false},
		{strings.ReplaceAll(fleet, ":causeway:", ":gpus:"), sliceOf(ours, "", "gpu1"), false},
		{unbound, sliceOf(ours, "a", "a"), false},
		{unbound, sliceOf(ours, "", ""), false},
		{node, sliceOf(ours, "a", "a"), true}, // causeway-fleet agent
		{node, sliceOf(ours, "a", "b"), false},
		{node, sliceOf(ours, "a", "fleet/gpu1"), false},
		{node, sliceOf(ours, "b", "b"), false},
		{node, sliceOf(ours, "", "a"), false},
		{node, sliceOf("gpu.example.com", "a", "any"), true}, // another driver's is none of ours
		{fleet, sliceOf(ours, "", "fleet/gpu1"), true},
		{fleet, sliceOf(ours, "", "gpu1"), false},
		{fleet, sliceOf(ours, "a", "fleet/gpu1"), false},
		{fleet, sliceOf("gpu.example.com", "", "fleet/gpu1"), false},
		{admin, sliceOf(ours, "a", "b"), true},
	} {
		allowed, why := true, ""
		for _, name := range []string{"causeway-dra", "causeway-nodes", "causeway-fleet"} {
			is, text := all[name].allows(strings.ReplaceAll(c.who, "OP", "CREATE"), c.slice, "")
			if !is {
				allowed, why = false, text
			}
		}
		if allowed != c.allowed || !allowed && why == "" {
			t.Errorf("%s writes %s: allowed %v, %q", c.who, c.slice, allowed, why)
		}
	}
	for slice, allowed := range map[string]bool{sliceOf(ours, "a", "a"): true, sliceOf(ours, "b", "b"): false} {
		if is, _ := all["causeway-dra"].allows(strings.ReplaceAll(dra, "OP", "DELETE"), "", slice); is != allowed {
			t.Errorf("deletes %s: %v", slice, is)
		}
	}
}

// claimOf is JSON of a claim, whose request is of a class and takes these capacities; template: of
// a template with it.
func claimOf(class, capacity string, template, choice bool) string {
	one := `"deviceClassName":"` + class + `"`
	if capacity != "" {
		one += `,"capacity":{"requests":{` + capacity + `}}`
	}
	request := `{"name":"gpu","exactly":{` + one + `}}`
	if choice {
		request = `{"name":"gpu","firstAvailable":[{"name":"a","deviceClassName":"gpu.example.com"},{"name":"b",` + one + `}]}`
	}
	spec := `{"devices":{"requests":[` + request + `]}}`
	if template {
		return `{"kind":"ResourceClaimTemplate","spec":{"spec":` + spec + `}}`
	}
	return `{"kind":"ResourceClaim","spec":` + spec + `}`
}

// TestClaimPolicies: amounts that no GPU has, and sizes beyond a class's, are refused however they
// are written: in a claim or its template, as the only choice or one of several, with the driver's
// name or without.
func TestClaimPolicies(t *testing.T) {
	claims, quota := readPolicies(t, "causeway-dra.yaml")["causeway-claims"], readPolicies(t, "quota.yaml")["causeway-quota"]
	const request = `{"operation":"CREATE","userInfo":{"username":"someone"}}`
	for _, c := range []struct {
		class, capacity string
		allowed, sized  bool // by the policy for all namespaces, by that for those with quotas
	}{
		{"causeway", ``, true, false},
		{"causeway", `"memory":"16Gi","compute":"25"`, true, false},
		{"causeway-kubevirt", `"memory":"16Gi"`, true, false},
		{"causeway-16g", `"memory":"16Gi","compute":"100"`, true, true},
		{"causeway-16g", `"memory":"1Gi"`, true, true},
		{"causeway-16g", `"memory":"16385Mi"`, true, false},
		{"causeway-16g", `"memory":"17179869185"`, true, false},
		{"causeway-16g", ``, true, false}, // all that the GPU has
		{"causeway-16g", `"compute":"1"`, true, false},
		// Another capacity to the scheduler, which no device has.
		{"causeway-16g", `"gpu.causeway.dev/memory":"1Gi"`, false, false},
		{"causeway", `"memory":"1Gi","gpu.causeway.dev/compute":"5"`, false, false},
		{"causeway-1g6", `"memory":"1Gi"`, true, false},
		{"causeway-99999g", `"memory":"1Gi"`, true, false},
		{"gpu.example.com", `"memory":"9Ei"`, true, true}, // is none of ours
		{"causeway", `"memory":"0"`, false, false},
		{"causeway", `"memory":"-1Gi"`, false, false},
		{"causeway-16g", `"memory":"-1Gi"`, false, true},
		{"causeway", `"memory":"1025Ti"`, false, false},
		{"causeway", `"memory":"18446744073709551616"`, false, false},
		{"causeway", `"gpu.causeway.dev/memory":"9Ei"`, false, false},
		{"causeway", `"compute":"101"`, false, false},
		{"causeway", `"memroy":"1Gi"`, false, false},
		{"causeway-16g", `"memory":"1Gi","cores":"1"`, false, true},
		{"gpu.example.com", `"cores":"1"`, true, true},
		{"causeway", `"compute":"-1"`, false, false},
		{"causeway", `"gpu.causeway.dev/compute":"9223372036854775808"`, false, false},
	} {
		for _, template := range []bool{false, true} {
			for _, choice := range []bool{false, true} {
				object := claimOf(c.class, c.capacity, template, choice)
				if is, why := claims.allows(request, object, ""); is != c.allowed {
					t.Errorf("%s: allowed %v, %q", object, is, why)
				}
				if is, why := quota.allows(request, object, ""); is != c.sized {
					t.Errorf("%s in a namespace with quotas: allowed %v, %q", object, is, why)
				}
			}
		}
	}
	for _, object := range []string{`{"kind":"ResourceClaim","spec":{"devices":{}}}`, `{"kind":"ResourceClaim","spec":{"devices":{"requests":[]}}}`} {
		for _, p := range []*policy{claims, quota} {
			if is, why := p.allows(request, object, ""); !is {
				t.Errorf("%s: %q", object, why)
			}
		}
	}
}
